/**
 * Generates gateway.schema.json and the table of keys in docs/configuration.md from the settings
 * table.
 */

import { BALANCES, WEIGHTS, type Rows, type Setting } from '../src/config/setting-kinds.ts';
import { SETTINGS } from '../src/config/settings-table.ts';
import { DEFAULT_TEXTS, MEANINGS } from './setting-meanings.ts';

const SECTIONS = Object.entries<Rows>(SETTINGS);

/** Generated files. Each function converts a file's text to its new text. */
export const GENERATED: Readonly<Record<string, (text: string) => string>> = {
  'gateway.schema.json': () => `${JSON.stringify(createSchema(), null, 2)}\n`,
  'docs/configuration.md': (text) =>
    text.replace(/^\| key \| type \|.*\n(?:\|.*\n)*/m, createTable()),
};

/** Returns a Markdown table with a row for each setting. */
function createTable(): string {
  const rows = SECTIONS.flatMap(([section, settings]) =>
    Object.entries(settings).map(([key, setting]) => {
      const { env, providerEnv, flag } = setting;
      const names = [env, flag && `--${flag}`, providerEnv].filter((name) => name !== undefined);
      const sources = names.map((name) => `\`${name}\``).join(', ');
      const path = `${section}.${key}`;
      const name = `\`[${section}] ${key}\``;
      const types: Partial<Record<Setting['type'], string>> = {
        targets: 'string, strings or table',
        table: 'tables',
      };
      const type = types[setting.type] ?? setting.type;
      const cells = [name, type.replace('text', 'string'), defaultOf(path, setting), sources];
      return `| ${[...cells, meaningOf(path, setting)].join(' | ')} |`.replace('|  |', '| |');
    }),
  );
  const header = ['| key | type | default | variable, flag | meaning |', '|---|---|---|---|---|'];
  return [...header, ...rows, ''].join('\n');
}

function defaultOf(path: string, { default: fallback }: Setting): string {
  const text = fallback === undefined ? 'none' : (fallback as string | number).toString();
  return DEFAULT_TEXTS[path] ?? text;
}

/** Returns a setting's choices and meaning. Marks settings that need a restart. */
function meaningOf(path: string, { choices, needsRestart }: Setting): string {
  const meaning = MEANINGS[path] ?? MEANINGS[path.slice(path.lastIndexOf('.') + 1)];
  if (!meaning) throw new Error(`setting-meanings.ts has nothing about ${path}`);
  const values = choices ? `${choices.join(', ')}: ` : '';
  return `${values}${meaning}${needsRestart ? '; needs a restart' : ''}`;
}

type Schema = Readonly<Record<string, unknown>>;

/** Creates a JSON Schema, draft 4, the newest draft known to taplo. */
function createSchema(): Schema {
  return {
    $schema: 'http://json-schema.org/draft-04/schema#',
    title: 'Settings of inference-gateway',
    ...tableSchema(''),
  };
}

/** Returns a section's schema with its subsections. `<...>` in a name stands for any name. */
function tableSchema(path: string): Schema {
  const named = new Map<string, Schema>();
  for (const [key, setting] of Object.entries(
    SECTIONS.find(([name]) => name === path)?.[1] ?? {},
  )) {
    named.set(key, settingSchema(`${path}.${key}`, setting));
  }
  const prefix = path === '' ? '' : `${path}.`;
  for (const [name] of SECTIONS.filter(([other]) => other !== path && other.startsWith(prefix))) {
    const [key = ''] = name.slice(prefix.length).split('.');
    named.set(key, tableSchema(`${prefix}${key}`));
  }
  const properties = [...named].filter(([key]) => !key.startsWith('<'));
  const others = [...named].find(([key]) => key.startsWith('<'));
  return {
    type: 'object',
    ...(properties.length > 0 ? { properties: Object.fromEntries(properties) } : {}),
    additionalProperties: others?.[1] ?? false,
  };
}

/** A reference, allowed for a value of any type. */
const REFERENCE = { type: 'string', pattern: String.raw`\$\{` };

function integersSchema({ min, max }: Pick<Setting, 'min' | 'max'>): Schema {
  return { type: 'array', items: { type: 'integer', minimum: min, maximum: max } };
}

/** Returns the schema of a table by model, whose members are integers and numbers. */
function modelsSchema({ rows }: Setting): Schema {
  const members = Object.entries(rows?.['<model>']?.rows ?? {}).map(
    ([name, { type, min, max }]) => [name, { type, minimum: min, maximum: max }],
  );
  const properties = Object.fromEntries(members) as Schema;
  const model = { type: 'object', properties, additionalProperties: false };
  return { type: 'object', additionalProperties: model };
}

function settingSchema(path: string, setting: Setting): Schema {
  const { type, min, max, choices, default: fallback, env, providerEnv } = setting;
  const text = { type: 'string', ...(typeof fallback === 'string' ? { minLength: 1 } : {}) };
  const texts = { type: 'array', items: { type: 'string' } };
  const integer = { anyOf: [{ type: 'integer', minimum: min, maximum: max }, REFERENCE] };
  const schemas: Record<Setting['type'], Schema> = {
    integer,
    number: { anyOf: [{ type: 'number', minimum: min, maximum: max }, REFERENCE] },
    seconds: integer,
    integers: integersSchema(setting),
    boolean: { anyOf: [{ type: 'boolean' }, REFERENCE] },
    date: { type: 'string' },
    text: choices ? { anyOf: [{ enum: choices }, REFERENCE] } : text,
    texts: choices ? { type: 'array', items: { anyOf: [{ enum: choices }, REFERENCE] } } : texts,
    targets: {
      anyOf: [
        text,
        { ...texts, minItems: 1 },
        {
          type: 'object',
          properties: {
            targets: { ...texts, minItems: 1 },
            balance: { enum: BALANCES },
            weights: integersSchema(WEIGHTS),
          },
          required: ['targets'],
          additionalProperties: false,
        },
      ],
    },
    headers: { type: 'object', additionalProperties: { type: 'string' } },
    table: modelsSchema(setting),
  };
  const variable = env ?? providerEnv;
  const unit = type === 'seconds' ? ' (seconds)' : '';
  return {
    description: [`${meaningOf(path, setting)}${unit}`, variable].filter(Boolean).join('; '),
    ...(fallback === undefined || DEFAULT_TEXTS[path] ? {} : { default: fallback }),
    ...schemas[type],
  };
}
