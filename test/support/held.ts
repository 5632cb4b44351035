import type { App } from '../../src/app.ts';

/** Returns what a gateway holds, by name. All counts are 0 when its requests are over. */
export function heldBy({ config, figures, parts, server }: App): Record<string, number> {
  const { budget } = parts;
  const sections = [
    'server',
    ...config.clients.map(({ name }) => `clients.${name}`),
    ...config.providers.registered.map(({ id }) => `providers.${id}`),
  ];
  return {
    'reserved bytes': budget.reservedBytes,
    'bytes of bodies': budget.bodyBytes,
    'waiting bytes': budget.waitingBytes,
    'waiting streams': budget.waitingStreams.size,
    'requests in flight': server.counts.inFlight,
    'open streams': server.counts.openStreams,
    ...Object.fromEntries(sections.map((name) => [`slots of ${name}`, figures.inFlightOf(name)])),
  };
}
