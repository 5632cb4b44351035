/** What is wrong with variables of the environment besides the values that a setting allows. */

import { didYouMean } from '../lib/did-you-mean.ts';

export type Env = Readonly<Record<string, string | undefined>>;

const PREFIX = 'GATEWAY_';
/** `tcp://10.0.0.7:80`: what Kubernetes and Docker links set for a Service `gateway`, besides `GATEWAY_SERVICE_HOST`. */
const SERVICE_LINK = /^(?:tcp|udp|sctp):\/\//;
const SERVICE_LINK_NAME =
  /^GATEWAY_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)|PORT_\d+_(?:TCP|UDP|SCTP))(?:_|$)/;

/** What to do about the value of a variable that is refused; empty if nothing is known about it. */
export function explainVariable(value: unknown): string {
  if (typeof value !== 'string' || !SERVICE_LINK.test(value)) return '';
  return '; Kubernetes sets this variable for a Service named "gateway": set enableServiceLinks: false in the pod, or rename the Service';
}

/** Returns a warning for each `GATEWAY_` variable that nothing reads. `known` are the variables that are looked up. */
export function warnOfUnknownVariables(env: Env, known: ReadonlySet<string>): string[] {
  const candidates = [...known].filter((name) => name.startsWith(PREFIX));
  return Object.entries(env)
    .filter(([name]) => name.startsWith(PREFIX) && !known.has(name))
    .filter(([name, value]) => !SERVICE_LINK_NAME.test(name) && !SERVICE_LINK.test(value ?? ''))
    .map(([name]) => `${name}: no setting has this variable${didYouMean(name, candidates)}`);
}
