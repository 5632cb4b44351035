/** The lasting incidents as metrics, in the words of the page, for the alerts. */

import type { Incident } from '../incidents/incident.ts';
import type { Incidents } from '../incidents/incidents.ts';
import { describeIncident, type Notice } from '../incidents/notice.ts';
import { redactFacts } from '../lib/log.ts';
import { cutText, type Redactor } from '../lib/secrets.ts';
import { INCIDENT_KINDS } from '../request/incident-kind.ts';
import type { FigureRow } from './figures.ts';
import { LabelSet } from './labels.ts';
import { MAX_LABEL_CHARACTERS } from './names.ts';

/** The least time between two causes of the same kind in an incident's labels. */
const CAUSE_KEPT_MS = 60_000;
/** A number with or without a unit, but no status, as in `503: busy`, and no part of a name. */
const NUMBER = /(?<![\w.:-])(?!(?:200|[45]\d\d)[:,] )\d+(?:[.,]\d+)?(?:ms|s|m|h)?(?![\w-]|[.:]\w)/g;

type Samples = Readonly<
  Record<
    'lasting' | 'words' | 'since' | 'requests' | 'models' | 'clients',
    (readonly [labels: LabelSet, value: number])[]
  >
>;

/** The words of an incident that are labels. */
type Words = Readonly<Record<'what' | 'cause' | 'fault' | 'action', string>>;

/**
 * Reads the figures of incidents. An incident keeps its words while only numbers in its cause
 * change, and for a minute otherwise, because Prometheus keeps a series for each text.
 */
export class IncidentFigures {
  readonly #words = new WeakMap<Incident, { words: Words; shape: string; madeAtMs: number }>();
  readonly #redact: Redactor;
  readonly #nameOf: (model: string | undefined) => string;

  /** @param nameOf - returns the name of a model as a label shows it */
  constructor(redact: Redactor, nameOf: (model: string | undefined) => string) {
    this.#redact = redact;
    this.#nameOf = nameOf;
  }

  /** Returns the figures of the incidents that last. */
  read(incidents: Incidents): FigureRow[] {
    const root = new LabelSet();
    const lasting = incidents.report().lasting.map((incident) => this.#read(incident, root));
    // Equal sets are one series: of two models that are `other`, or of two incidents of a kind.
    const samplesOf = (name: keyof Samples) => [...new Map(lasting.flatMap((one) => one[name]))];
    const begun = INCIDENT_KINDS.map(
      (kind) => [root.with('kind', kind), incidents.counts.get(kind) ?? 0] as const,
    );
    return [
      ['gateway_incident', samplesOf('lasting'), 'Always 1: it lasts.'],
      [
        'gateway_incident_info',
        samplesOf('words'),
        'Always 1: what is wrong, why, whose fault it is, and what to do.',
      ],
      [
        'gateway_incident_since_seconds',
        samplesOf('since'),
        'When it began, in seconds since the epoch.',
      ],
      ['gateway_incident_requests', samplesOf('requests'), 'Requests that it has affected.'],
      ['gateway_incident_model', samplesOf('models'), 'Always 1: the model fails or is slow.'],
      [
        'gateway_incident_client',
        samplesOf('clients'),
        'Always 1: the incident affects the client.',
      ],
      ['gateway_incidents_total', begun, 'Incidents that have begun.'],
    ];
  }

  /** Returns the samples of each figure. */
  #read(incident: Incident, root: LabelSet): Samples {
    const facts = redactFacts(incident.toFacts(), this.#redact);
    const { affected, kind, provider } = facts;
    const labels = root.with('kind', kind).with('provider', provider);
    const notice = describeIncident(incident, facts);
    const { answered, failed, slow } = notice;
    const words = Object.entries(this.#wordsOf(incident, notice));
    const slowModels = kind === 'slow' ? affected.map(({ name }) => name) : [];
    const models = facts.models?.map(({ model }) => model) ?? slowModels;
    return {
      lasting: [[labels, 1]],
      words: [[words.reduce((set, [name, text]) => set.with(name, text), labels), 1]],
      since: [[labels, Math.floor(incident.since.time / 1000)]],
      requests: Object.entries({ answered, failed, slow }).map(([result, count]) => [
        labels.with('result', result),
        count,
      ]),
      models: models.map((name) => [labels.with('model', this.#nameOf(name)), 1]),
      clients: incident.requests.clients.map(([client, result]) => [
        labels.with('client', client).with('result', result),
        1,
      ]),
    };
  }

  #wordsOf(incident: Incident, { action, causes, fault, title }: Notice): Words {
    const cause = cutText(causes.join('; '), MAX_LABEL_CHARACTERS);
    const shape = cause.replace(NUMBER, '0');
    const nowMs = performance.now();
    const known = this.#words.get(incident);
    const isKept = known && (shape === known.shape || nowMs - known.madeAtMs < CAUSE_KEPT_MS);
    if (isKept && title === known.words.what) return known.words;
    const words = { what: title, cause, fault, action };
    this.#words.set(incident, { words, shape, madeAtMs: nowMs });
    return words;
  }
}
