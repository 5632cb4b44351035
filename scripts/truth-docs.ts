/** Generates the tables of results in the documents from truth/. */

import { join } from 'node:path';

import { ROOT } from '../test/support/process.ts';
import { createDetails, createSummary, insertTable } from '../truth/table.ts';

const FOLDER = join(ROOT, 'truth');

/** Documents with tables of results. Each function converts a document's text to its new text. */
export const TRUTH_TABLES: Readonly<Record<string, (text: string) => string>> = {
  'README.md': (text) => insertTable(text, 'truth', createSummary(FOLDER)),
  'truth/README.md': (text) =>
    insertTable(insertTable(text, 'groups', createSummary(FOLDER)), 'cases', createDetails(FOLDER)),
};
