/** JSON.parse alone: CPU milliseconds per MB of a request's text, from its bytes. */

interface Question {
  readonly body: Uint8Array;
  readonly ms: number;
}

process.on('message', ({ body, ms }: Question) => {
  const bytes = Buffer.from(body);
  const parseFor = (duration: number) => {
    const startedAt = performance.now();
    const before = process.cpuUsage();
    let count = 0;
    do {
      JSON.parse(bytes.toString());
      count += 1;
    } while (performance.now() < startedAt + duration);
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000 / ((count * bytes.length) / 1e6);
  };
  parseFor(ms / 2);
  process.send!({ result: parseFor(ms) });
});
process.on('disconnect', () => process.exit());
