import { generate } from './generate.ts';
import { problemsOf } from './shrink.ts';
const [count, first] = process.argv.slice(2).map(Number);
const start = process.cpuUsage();
Error.stackTraceLimit = 0;
let bad = 0;
for (let seed = first ?? 1; seed < (first ?? 1) + count!; seed += 1) {
  const p = await problemsOf(generate(seed));
  if (p.length) {
    bad++;
    console.log(seed, p[0]!.slice(0, 300));
  }
}
const { user, system } = process.cpuUsage(start);
console.log(
  count,
  'worlds',
  ((user + system) / 1e6).toFixed(2),
  's cpu',
  (count! / ((user + system) / 1e6)).toFixed(1),
  'a second',
  bad,
  'bad',
);
