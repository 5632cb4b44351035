/** One request from its arrival to its access line: order of checks, routes, the one catch. */

import type { Config } from '../config/config.ts';
import type { Call } from '../downstream/call.ts';
import { ClientGone, GatewayError } from '../lib/errors.ts';
import type { Logger } from '../lib/log.ts';
import type { Answer } from '../lib/messages.ts';
import { VERSION } from '../lib/version.ts';
import { createAuthenticator } from '../policy/authentication.ts';
import { createAccessLog } from './access-log.ts';
import { completeChat, type CompletionSettings } from './chat-completions.ts';
import { addCorsHeaders, answerPreflight, isPreflight } from './cors.ts';
import { createModelList } from './model-list.ts';

interface GatewaySettings {
  readonly config: Config;
  readonly completion: CompletionSettings;
  readonly logger: Logger;
  /** A monotonic clock in milliseconds. */
  readonly now: () => number;
}

interface Route {
  readonly methods: readonly string[];
  readonly answer: (call: Call) => Answer | Promise<Answer>;
}

const HEALTH_PATH = '/health';
const JSON_HEADERS = { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' };

/** Returns the handler of every call. It never rejects. */
export function createGateway(settings: GatewaySettings): (call: Call) => Promise<void> {
  const { config, completion, logger, now } = settings;
  const { limits, providers, transport } = completion;
  const authenticate = createAuthenticator(config.server.auth);
  const listModels = createModelList({ providers, aliases: config.aliases, transport, now });
  const logAccess = createAccessLog({ logger, verbose: config.logging.verbose, now });

  const routes = new Map<string, Route>([
    [HEALTH_PATH, { methods: ['GET', 'HEAD'], answer: health }],
    ['/v1/models', { methods: ['GET'], answer: () => listModels() }],
    [
      '/v1/chat/completions',
      { methods: ['POST'], answer: (call) => completeChat(call, completion) },
    ],
  ]);

  /** In this order, so that an unauthenticated client learns and consumes nothing. */
  async function dispatch(call: Call): Promise<Answer> {
    call.checkProtocol();
    const route = routes.get(call.path);
    const found = route?.methods.includes(call.method) ? route : undefined;
    if (found && call.path === HEALTH_PATH) return found.answer(call);
    if (config.server.cors && isPreflight(call)) return answerPreflight(call);
    authenticate(call.headerValues('authorization'));
    const refusal = limits.takeGlobal();
    if (refusal) throw refusal;
    if (found) return found.answer(call);
    const allow = route && { headers: { allow: route.methods.join(', ') } };
    throw new GatewayError('notFound', 'Resource not found', allow);
  }

  function addCommonHeaders({ record }: Call, answer: Answer): void {
    if (record.provider) answer.headers['x-gateway-provider'] = record.provider;
    if (config.server.cors) addCorsHeaders(answer);
  }

  return async (call) => {
    let answer: Answer | undefined;
    try {
      answer = await dispatch(call);
    } catch (thrown) {
      // The request may report the disconnect before the response does.
      if (thrown instanceof ClientGone) call.cancellation.cancel(thrown);
      else answer = toErrorAnswer(call, GatewayError.from(thrown));
    }
    try {
      if (answer) {
        addCommonHeaders(call, answer);
        await call.send(answer);
      }
    } catch (thrown) {
      answer = toErrorAnswer(call, GatewayError.from(thrown));
      await call.send(answer).catch(() => {});
    }
    logAccess(call, answer?.status);
  };
}

function health(call: Call): Answer {
  const status = call.isDraining ? 503 : 200;
  const body = { status: call.isDraining ? 'draining' : 'healthy', version: VERSION };
  return { status, headers: { ...JSON_HEADERS }, body: JSON.stringify(body) };
}

function toErrorAnswer(call: Call, failure: GatewayError): Answer {
  const { record } = call;
  record.failure = failure;
  const headers: Record<string, string> = { ...JSON_HEADERS, ...failure.toHeaders() };
  const { provider = record.provider } = failure.facts;
  // The gateway has retried or fallen back: a client's retries would multiply with its own.
  if (record.attempts.length > 1 || provider !== record.provider) {
    headers['x-should-retry'] = 'false';
  }
  record.provider = provider;
  return { status: failure.status, headers, body: failure.toBody() };
}
