/**
 * The rows of list.txt. Tabs separate their three columns: a text, the text that replaces it, and
 * the name of the test file that must fail then. \u23ce is a line end.
 *
 * A row names no file: its text occurs exactly once in `src`, or nowhere in `src` and exactly once
 * in the other files. Texts are compared by tokens, so rows stay valid when code moves to another
 * file or is wrapped anew.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const TOKEN = /#?[\w$]+|\S/g;
const LEFT_OUT = /^(?:\.git|dist|list\.txt|node_modules|package-lock\.json)$/;

export interface Mutation {
  readonly row: string;
  readonly text: string;
  readonly mutated: string;
  readonly tests: string;
}

/** A file that rows may change. */
interface Source {
  readonly file: string;
  readonly text: string;
  /** Its tokens, each between two line ends. */
  readonly tokens: string;
}

/** A place where the text of a row occurs. */
interface Place {
  readonly source: Source;
  /** The number of tokens before the place. */
  readonly before: number;
}

function splitTokens(text: string): readonly string[] {
  return text.match(TOKEN) ?? [];
}

function joinTokens(text: string): string {
  return `\n${splitTokens(text).join('\n')}\n`;
}

/** Throws an Error if a row has other columns. */
export function readRows(list: string): readonly Mutation[] {
  const rows = list.trimEnd().split('\n');
  return rows.map((row) => {
    const cells = row.split('\t').map((cell) => cell.replaceAll('\u23ce', '\n'));
    const [text = '', mutated = '', tests = ''] = cells;
    if (cells.length !== 3 || splitTokens(text).length === 0 || !tests)
      throw new Error(`not the three columns text, replacement and test: ${row}`);
    return { row, text, mutated, tests };
  });
}

/**
 * Returns the list with a name replaced in all texts and replacements. Throws an Error if `from` is
 * not one token.
 */
export function renameInRows(list: string, from: string, to: string): string {
  if (splitTokens(from)[0] !== from) throw new Error(`not a name: ${from}`);
  const rename = (cells: string) => cells.replace(TOKEN, (token) => (token === from ? to : token));
  return list.replace(/^.*(?=\t)/gm, rename);
}

function listFiles(folder: string, below = ''): string[] {
  const entries = readdirSync(join(folder, below), { withFileTypes: true });
  return entries
    .filter(({ name }) => !LEFT_OUT.test(name))
    .flatMap((entry) => {
      const path = join(below, entry.name);
      return entry.isDirectory() ? listFiles(folder, path) : [path];
    });
}

/** Finds the texts of rows in the files below a folder, which it reads once. */
export class PlaceFinder {
  readonly #own: readonly Source[];
  readonly #others: readonly Source[];

  constructor(folder: string) {
    const sources = listFiles(folder).map((file) => {
      const text = readFileSync(join(folder, file), 'utf8');
      return { file, text, tokens: joinTokens(text) };
    });
    const isOwn = ({ file }: Source) => file.startsWith('src');
    this.#own = sources.filter(isOwn);
    this.#others = sources.filter((source) => !isOwn(source));
  }

  /** Returns the place of a row's text, or the number of its places if that is not 1. */
  find({ text }: Mutation): Place | number {
    const wanted = joinTokens(text);
    const own = findIn(this.#own, wanted);
    const places = own.length > 0 ? own : findIn(this.#others, wanted);
    return places.length === 1 ? places[0]! : places.length;
  }
}

function findIn(sources: readonly Source[], wanted: string): readonly Place[] {
  return sources.flatMap((source) => {
    const places: Place[] = [];
    let offset = source.tokens.indexOf(wanted);
    for (; offset >= 0; offset = source.tokens.indexOf(wanted, offset + 1))
      places.push({ source, before: source.tokens.slice(0, offset).split('\n').length - 1 });
    return places;
  });
}

/** Returns the text of the place's file with the row's replacement. */
export function replaceAt({ source, before }: Place, { text, mutated }: Mutation): string {
  const end = before + splitTokens(text).length;
  const tokens = [...source.text.matchAll(TOKEN)].slice(before, end);
  const last = tokens.at(-1)!;
  const rest = source.text.slice(last.index + last[0].length);
  return source.text.slice(0, tokens[0]!.index) + mutated + rest;
}
