/** What an operator should do something about now, one sentence each. */

import { needsKey, type Config } from '../config/config.ts';
import { isLoopback } from '../lib/loopback.ts';
import { readDescriptors, type Figures } from './figures.ts';

const MAX_SHARE = 0.8;

/** Returns the sentences, the most urgent first; none if all is well. */
export function attentionOf(config: Config, figures: Figures): string[] {
  const { providers, server } = config;
  const { failedAtMs, problem } = figures.lastReload();
  const { open = 0, max = Infinity } = readDescriptors();
  const lost = figures.droppedLogLines();
  const failing = providers.registered.filter(({ id }) => figures.isModelListUp(id) === false);
  const isOpen = !needsKey(config) && !isLoopback(server.host);
  const sentences = [
    failedAtMs !== undefined &&
      `The reload of ${new Date(failedAtMs).toISOString()} failed: ${problem}. Correct the file and send SIGHUP again.`,
    ...figures.keysInCooldown().flatMap(([id, keys]) => {
      const refused = keys.filter(({ status }) => status !== 429);
      const limited = keys.filter(({ status }) => status === 429);
      return [
        refused.length > 0 && `Provider ${id} refuses ${named(refused)}: replace it in api_keys.`,
        limited.length > 0 &&
          `Provider ${id} limits ${named(limited)}: used again when the limit ends.`,
      ];
    }),
    figures.store()?.isAway &&
      'The store of [rate_limit] does not answer: each gateway limits by itself.',
    (open > MAX_SHARE * max || figures.exhaustions() > 0) &&
      `${open} of ${max} file descriptors are open, ${figures.exhaustions()} connections failed for want of them: raise ulimit -n.`,
    lost > 0 && `${lost} log lines were lost: standard output is not read, or its disk is full.`,
    isOpen &&
      'No keys are set, and the gateway listens beyond this machine: set [server.auth] keys.',
    ...failing.map(
      ({ id }) => `The list of models of ${id} cannot be read: see "model list failed" in the log.`,
    ),
  ];
  return sentences.filter((text) => typeof text === 'string');
}

function named(keys: readonly { readonly key: number; readonly status: number }[]): string {
  return keys.map(({ key, status }) => `key ${key} (${status})`).join(', ');
}
