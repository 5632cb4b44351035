/**
 * Finds a page that a proxy or a wrong `base_url` has sent in place of an answer, and reads its
 * words.
 */

/** How much of a page is searched for its words. */
export const MAX_PAGE_CHARACTERS = 4096;
/** The most words of a page in a cause. */
export const MAX_WORDS_CHARACTERS = 100;
/** A body is a page if it begins so. */
const BEGINS_PAGE = /^\ufeff?\s*<(?:!doctype|!--|\?xml|html|head|body|script|title)/i;
/**
 * The message of a provider's error is a page if it has such a tag. Other tags do not count,
 * because messages quote `<class 'int'>`, `<image>` and `<400>`.
 */
export const PAGE_TAG = /<(?:!doctype|html|head|body|script)/i;
/**
 * A `text/plain` body is a page, and no message, if it has such markup. A start tag does not count,
 * because ordinary messages quote `<class 'int'>`.
 */
export const MARKUP = /<[/!?]/;
const TITLE = /<title[^>]*>([^<]+)/i;
/** Invisible parts of a page. An unfinished script, comment or tag takes the rest of the text. */
const INVISIBLE =
  /<!--[^]*?(?:-->|$)|<(script|style)\b[^]*?(?:<\/\1[^>]*(?:>|$)|$)|<[^>]*(?:>|$)/gi;

/** Returns a page's title, or else its visible words; undefined if the text is no page. */
export function pageWordsOf(text: string): string | undefined {
  if (!BEGINS_PAGE.test(text)) return undefined;
  const beginning = text.slice(0, MAX_PAGE_CHARACTERS);
  const words = TITLE.exec(beginning)?.[1]?.trim() || beginning.replace(INVISIBLE, ' ');
  return words.replace(/\s+/g, ' ').trim();
}
