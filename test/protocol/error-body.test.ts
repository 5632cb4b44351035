/** Providers' errors in their various shapes. */

import assert from 'node:assert/strict';
import { test } from 'node:test';

import {
  readFault,
  reportsFailure,
  toWord,
  type UpstreamFault,
} from '../../src/protocol/error-body.ts';
import { RESPONSES } from '../../src/protocol/responses.ts';

type Row = readonly [json: unknown, expected: Partial<UpstreamFault>, sentStatus?: number];

function check(rows: readonly Row[]): void {
  for (const [json, expected, sentStatus] of rows) {
    const fault: Readonly<Record<string, unknown>> = { ...readFault(json, sentStatus) };
    for (const [name, value] of Object.entries(expected)) {
      assert.equal(fault[name], value, `${name} of ${JSON.stringify(json)}`);
    }
  }
}

test('the message is found under the names that providers use, also in lists', () => {
  const message = 'boom';
  check([
    ['boom', { message }],
    [{ error: 'boom' }, { message }],
    [{ error: { message: 'boom' } }, { message }],
    [[{ error: { message: 'boom' } }], { message }],
    [{ errors: [{ message: 'boom' }] }, { message }],
    [{ detail: [{ msg: 'boom', loc: ['body'] }] }, { message }],
    [{ detail: 'boom' }, { message }],
    [{ Message: 'boom' }, { message }],
    [{ error: { error: { error_description: 'boom' } } }, { message }],
    [{ error_code: 1, error_msg: 'boom' }, { message }],
    [{ base_resp: { status_code: 1004, status_msg: 'boom' } }, { message }],
    [{ message: ' ', error: { message: 'boom' } }, { message }],
    [{ error: { text: 'boom' } }, { message: undefined }],
    [{}, { message: undefined }],
    [null, { message: undefined }],
  ]);
});

test("OpenRouter's generic message is followed by its provider's name and message", () => {
  const generic = 'Provider returned error';
  const error = (metadata: unknown) => ({ error: { message: generic, metadata } });
  check([
    [
      error({ provider_name: 'Acme', raw: '{"error":{"message":"boom"}}' }),
      { message: `${generic}: Acme: boom` },
    ],
    [error({ provider_name: 'Acme', raw: 'plain' }), { message: `${generic}: Acme: plain` }],
    [error({ raw: { detail: 'boom' } }), { message: `${generic}: boom` }],
    [error({ provider_name: 'Acme' }), { message: `${generic}: Acme` }],
    [{ error: { message: 'other', metadata: { raw: 'x' } } }, { message: 'other' }],
  ]);
});

test('the search for a message ends after a hundred arrays and objects', () => {
  const nested = (levels: number) => {
    let value: unknown = 'boom';
    for (let level = 0; level < levels; level += 1) value = { error: value };
    return value;
  };
  assert.equal(readFault(nested(100)).message, 'boom');
  assert.equal(readFault(nested(101)).message, undefined);
  assert.equal(readFault(nested(3000)).message, undefined);
});

test('the status is a member, else the meaning of the code or type, else 502', () => {
  check([
    [{ error: { status_code: 418 } }, { status: 418 }],
    [{ error: { code: '429' } }, { status: 429 }],
    [{ error: { code: 401, status: 'UNAUTHENTICATED' } }, { status: 401 }],
    [{ status: 503, error: { code: 'invalid_api_key' } }, { status: 503 }],
    [{ error: { code: 200, type: 'overloaded_error' } }, { status: 503 }],
    [{ error: { type: 'request_too_large' } }, { status: 413 }],
    [{ error: { type: 'timeout_error' } }, { status: 504 }],
    [{ error: { code: 'context_length_exceeded' } }, { status: 400 }],
    [{ error: { type: 'Invalid-Request.Error' } }, { status: 400 }],
    [{ error: { code: 'odd', type: 'authentication_error' } }, { status: 401 }],
    [{ error: { code: 'PERMISSION_DENIED' } }, { status: 403 }],
    [{ error: { code: 'InvalidParameter' } }, { status: 400 }],
    [{ error: { type: 'model_overloaded' } }, { status: 503 }],
    [{ error: { code: 'invalid_api_key', type: 'overloaded_error' } }, { status: 401 }],
    [{ error: { code: 'not_found', type: 'overloaded_error' } }, { status: 404 }],
    [{ error: { code: 'model_not_found' } }, { status: 404 }],
    [{ error: { code: 'insufficient_quota' } }, { status: 429 }],
    [{ error: { code: 'odd', type: 'odd' } }, { status: 502 }],
    [{ error: { code: [404] } }, { status: 502 }],
    [{ error: { code: 4040, status: 600 } }, { status: 502 }],
    ['404', { status: 502 }],
  ]);
});

test('an HTTP status comes before every status in the error', () => {
  check([
    [{ error: { code: 401, status: 403 } }, { status: 418 }, 418],
    [{ error: { code: 'invalid_api_key' } }, { status: 503, blame: 'server' }, 503],
  ]);
});

const aboutModel = (error: unknown, sentStatus: number, isBlamed = true): Row => {
  const others = { 404: 'server', 400: 'request', 422: 'request' } as const;
  const other = others[sentStatus as keyof typeof others];
  return [error, { status: sentStatus, blame: isBlamed ? 'model' : other }, sentStatus];
};

test('a 404 or a 400 is about the model if a text of its JSON says so', () => {
  check([
    aboutModel({ error: { message: 'The Model x does not exist' } }, 404),
    aboutModel({ error: { message: 'gone', code: 'model_not_found' } }, 404),
    aboutModel({ error: { message: 'gone', type: 'bad_model' } }, 404),
    aboutModel({ error: { message: 'no such page' } }, 404, false),
    aboutModel('no such model', 404, false),
    aboutModel({ error: { message: 'Model Not Exist' } }, 400),
    aboutModel({ error: { code: 'Model-Not-Found' } }, 400),
    aboutModel({ error: { message: 'the model takes no images' } }, 400, false),
    aboutModel({ error: { message: "bad role 'Model Not Exist'" } }, 400, false),
    aboutModel({ error: { message: 'Model Not Existing' } }, 400, false),
    aboutModel('Model Not Exist', 400, false),
    aboutModel({ error: { message: 'Model Not Exist' } }, 422, false),
  ]);
});

test('the request is to blame for its content, its length and its other mistakes', () => {
  check([
    [{ error: { code: 'content_policy_violation' } }, { blame: 'policy' }, 400],
    [{ error: { type: 'Content-Filter' } }, { blame: 'policy' }, 500],
    [{ error: { metadata: { flagged_input: 'x' } } }, { blame: 'policy' }, 403],
    [{ error: {}, metadata: { flagged_input: 'x' } }, { blame: 'key' }, 403],
    [{ error: { message: 'content policy' } }, { blame: 'request' }, 400],
    [{ error: { code: 'moderation_blocked' } }, { blame: 'policy', status: 400 }],
    [{ error: { code: 'x', type: 'content_filter' } }, { blame: 'policy' }, 503],
    [{ error: { code: 'cyber_policy' } }, { blame: 'policy' }, 403],
    [{ error: { code: 'invalid_prompt' } }, { blame: 'policy', status: 400 }],
    [{ error: { code: 'invalid_prompt' } }, { blame: 'policy', status: 500 }, 500],
    [{ error: { type: 'usage-policy-violation' } }, { blame: 'policy', status: 400 }],
    [{ error: { code: 'RequestDisallowedByPolicy' } }, { blame: 'key' }, 403],
    [{ error: { code: 'context_length_exceeded' } }, { blame: 'length' }, 400],
    [{ error: { code: 400, type: 'exceed_context_size_error' } }, { blame: 'length' }, 400],
    [{ error: { code: '1261' } }, { blame: 'length' }, 400],
    [{ error: { code: '1261' } }, { blame: 'length', status: 400 }],
    [{ error: { code: '12610' } }, { blame: 'request' }, 400],
    [{ error: { code: 'context_length_exceeded' } }, { blame: 'length', status: 400 }],
    [{ error: { code: 'context_length_exceeded' } }, { blame: 'request' }, 413],
    [{ error: { code: 'context_length_exceeded' } }, { blame: 'request' }, 500],
    [{}, { blame: 'request' }, 451],
    [{}, { blame: 'server' }, 429],
    [{}, { blame: 'server' }, 500],
  ]);
});

test('a code about an image or a length blames the request under any status', () => {
  const codes =
    'invalid_image invalid_image_format invalid_base64_image invalid_image_url ' +
    'image_too_large image_too_small image_parse_error invalid_image_mode image_file_too_large ' +
    'unsupported_image_media_type empty_image_file failed_to_download_image image_file_not_found ' +
    'string_above_max_length';
  check(
    codes.split(' ').flatMap((code): Row[] => [
      [{ error: { code } }, { blame: 'request', status: 400 }],
      [{ error: { code } }, { blame: 'request', status: 500 }, 500],
      [{ error: { code, status: 403 } }, { blame: 'request', status: 403 }],
    ]),
  );
  check([
    [{ error: { code: 'image_generation_failed' } }, { blame: 'server', status: 502 }],
    [{ error: { code: 'server_error' } }, { blame: 'server' }, 500],
  ]);
});

const REFERENCES = RESPONSES.references!;

test('a 404 or 409 about an object of a client blames the reference, if the endpoint has any', () => {
  const messages = [
    "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.",
    "Previous response with id 'resp_1' not found.",
    "Conversation with id 'conv_1' not found.",
    'Conversation not found',
    "Vector store with id 'vs_1' not found.",
    'No such File object: file-1',
    'Another process is currently operating on this conversation. Please retry.',
  ];
  for (const message of messages) {
    for (const status of [404, 409]) {
      const json = { error: { message, type: 'invalid_request_error' } };
      assert.equal(readFault(json, status, REFERENCES).blame, 'reference', message);
      const inEvent = { error: { message, status } };
      assert.equal(readFault(inEvent, undefined, REFERENCES).blame, 'reference', message);
      assert.equal(readFault(json, status).blame, 'server', message);
      assert.equal(readFault(json, 500, REFERENCES).blame, 'server', message);
    }
  }
  const others: readonly (readonly [string, string])[] = [
    ['Not Found', 'server'],
    ["The model 'item' was not found", 'model'],
    ["Invalid input: 'Item with id x not found'", 'server'],
    ['Items are itemized', 'server'],
  ];
  for (const [message, blame] of others) {
    assert.equal(readFault({ error: { message } }, 404, REFERENCES).blame, blame, message);
  }
});

test('a 400 or 403 blames the request, the model or the key by its words', () => {
  const xai = 'Content violates usage guidelines. Team: t, API key ID: k, Model: grok-4';
  const denied = 'Access to the chat endpoint is denied';
  const scopes = 'You have insufficient permissions. Missing scopes: model.request.';
  check([
    [{ code: 'permission-denied', error: xai }, { blame: 'policy' }, 403],
    [
      { code: 'permission-denied', error: xai },
      { blame: 'policy', status: 400 },
    ],
    [
      { error: { message: 'This needs moderation. Your input was flagged for "x".' } },
      { blame: 'policy' },
      403,
    ],
    [{ error: { code: 'data_inspection_failed' } }, { blame: 'policy' }, 400],
    [{ error: { code: '1301' } }, { blame: 'policy' }, 400],
    [
      { error: { code: 'invalid_prompt', message: 'your prompt was flagged' } },
      { blame: 'policy' },
      400,
    ],
    [{ error: { type: 'billing_error' } }, { blame: 'key', status: 402 }],
    [{ error: { code: 'insufficient_balance' } }, { blame: 'key', status: 402 }],
    [{ code: 'permission-denied', error: denied }, { blame: 'key' }, 403],
    [
      { error: { message: 'Project `p` does not have access to model `m`' } },
      { blame: 'model' },
      403,
    ],
    [{ message: "You don't have access to the model with the ID." }, { blame: 'model' }, 403],
    [{ error: { message: 'no', code: 'model_permission_blocked_org' } }, { blame: 'model' }, 403],
    ['No access to model: m', { blame: 'key' }, 403],
    [{ error: { message: scopes } }, { blame: 'key' }, 403],
    [{ error: { message: 'You have no access to model.request' } }, { blame: 'key' }, 403],
  ]);
});

const STATUSES = [400, 401, 403, 404, 409, 422, 429, 451, 500, 503];

test('a message that refuses the content blames it under any status, and without one', () => {
  const messages = [
    'Content violates usage guidelines. Team: t, API key ID: k, Model: grok-4',
    'This needs moderation. Your input was flagged for "x".',
    'Input flagged by moderation',
    'Your request was flagged as violating our usage policy',
    'Your request was rejected as a result of our safety system.',
    'It may contain text that is not allowed by our safety system.',
    'This request has been blocked by our content filters.',
    'Output blocked by content filtering policy',
    'The request was blocked due to safety reasons',
    'The content was blocked by guardrail',
    "The response was filtered due to the prompt triggering Azure's content management policy.",
    'Generated image rejected by content moderation.',
    'Content Exists Risk',
    'Input data may contain inappropriate content.',
  ];
  for (const message of messages) {
    check([
      [{ error: { message } }, { blame: 'policy', status: 400 }],
      [{ error: { message, type: 'server_error', code: 'unavailable' } }, { blame: 'policy' }, 500],
      [{ error: { message, code: 'image_too_large' } }, { blame: 'policy' }, 500],
      [{ error: { message, code: 'invalid_api_key' } }, { blame: 'key' }, 401],
      ...STATUSES.map((status): Row => [
        { error: { message } },
        { blame: 'policy', status },
        status,
      ]),
    ]);
  }
});

test('a message about an account, a network or a failed filter refuses no content', () => {
  const messages = [
    'Your account was flagged',
    'Your account is suspended: your prompts violated our policy',
    'Your API key was blocked: prompts flagged for violating our policy',
    "Your team's request limit violates the spending limit",
    'Your organization is blocked: prompts violated our usage policy',
    'The quota is over. Your prompt violates nothing',
    'This request violates the terms of your billing plan',
    'Your request violates the credits of your plan',
    'Your request violates the rate limit',
    'The request violates the security rules',
    'Your request was flagged: unusual traffic',
    'Your request was flagged: your IP address is blocked',
    'insert on table message violates foreign key constraint',
    'The content filter timed out',
    'Content moderation is unavailable',
    'The safety system is overloaded',
    'The guardrail identifier or version provided in the request does not exist.',
    'No endpoints available matching your guardrail restrictions and data policy',
    'The server had an error while processing your request.',
    'Rate limit reached for requests',
    'Request was blocked',
  ];
  for (const message of messages) {
    check([
      [{ error: { message } }, { blame: 'key' }, 403],
      [{ error: { message } }, { blame: 'server' }, 429],
      [{ error: { message } }, { blame: 'server' }, 500],
      [{ error: { message } }, { blame: 'server', status: 502 }],
    ]);
  }
});

const INVALID = { code: 400, status: 'INVALID_ARGUMENT' };
const REASON = { '@type': 'type.googleapis.com/google.rpc.ErrorInfo', reason: 'API_KEY_INVALID' };

test('the key is to blame for a 401, a 402, a 403, and a 400 that says so', () => {
  const refused = { blame: 'key', status: 401 } as const;
  const quoted = { error: { message: 'bad content: API key not valid' } };
  check([
    [{}, refused, 401],
    [{}, { blame: 'key', status: 403 }, 403],
    [{ error: { message: 'Insufficient Balance' } }, { blame: 'key', status: 402 }, 402],
    [{ error: { code: 402 } }, { blame: 'key', status: 402 }],
    [[{ error: { ...INVALID, message: 'no', details: [{}, REASON] } }], refused, 400],
    [[{ error: { ...INVALID, message: 'no', details: [REASON] } }], refused],
    [{ error: { ...INVALID, details: REASON } }, { blame: 'request', status: 400 }, 400],
    [{ error: { code: 'invalid_api_key', type: 'invalid_request_error' } }, refused, 400],
    [{ error: { message: 'API key not valid. Please pass a valid API key.' } }, refused, 400],
    [{ error: { message: 'API key expired. Please renew the API key.' } }, refused, 400],
    [{ error: { message: 'API Key not found. Please pass a valid API key.' } }, refused, 400],
    [{ code: 'x', error: 'Incorrect API key provided: xa***. You can obtain' }, refused, 400],
    [{ code: 'x', error: 'Incorrect API key provided: xa***. You can obtain' }, refused],
    [quoted, { blame: 'request', status: 400 }, 400],
    [quoted, { blame: 'server', status: 502 }],
    [{ error: { message: 'API key expired', code: 429 } }, { blame: 'server', status: 429 }],
  ]);
});

test('an account without money is the fault of the key, as a 400, a 429 and without a status', () => {
  const codes = ['billing_hard_limit_reached', 'billing_limit_user_error', 'billing_not_active'];
  const refused = { blame: 'key', status: 401 } as const;
  const rows = codes.flatMap((code) =>
    [{ code }, { type: code }, { code, type: 'invalid_request_error' }].flatMap((error): Row[] => [
      [{ error }, refused],
      [{ error }, refused, 400],
      [{ error }, { blame: 'key', status: 429 }, 429],
      [{ error }, { blame: 'server' }, 500],
    ]),
  );
  const messages = [
    'Billing hard limit has been reached',
    'Your credit balance is too low to access the Anthropic API.',
    'You have reached your specified API usage limits. You will regain access on 2026-12-01.',
    'You have reached your specified workspace API usage limits. You will regain access soon.',
    'This organization has been disabled.',
  ];
  check([
    ...rows,
    ...messages.flatMap((message): Row[] => [
      [{ error: { message, type: 'invalid_request_error' } }, refused, 400],
      [{ error: { message: `bad text: ${message}` } }, { blame: 'request' }, 400],
    ]),
    [{ error: { code: 'insufficient_quota' } }, { blame: 'server' }, 429],
  ]);
});

test("MiniMax's numbers say whose fault an error in a 200 is", () => {
  const state = (status_code: unknown) => ({ base_resp: { status_code, status_msg: 'no' } });
  const rows = (numbers: number[], blame: UpstreamFault['blame'], status: number) =>
    numbers.map((number): Row => [state(number), { blame, status, message: 'no' }]);
  check([
    ...rows([1004, 2049], 'key', 401),
    ...rows([1008], 'key', 402),
    ...rows([1002, 1041, 2045, 2056], 'server', 429),
    ...rows([1026, 1027], 'policy', 400),
    ...rows([1042, 2013], 'request', 400),
    ...rows([1000, 1001, 1024, 1033, 9999], 'server', 502),
    [state('1004'), { blame: 'server', status: 502 }],
    // The same number of z.ai's is a refused token, which z.ai sends as a 401.
    [{ error: { code: 1002, message: 'no' } }, { blame: 'server', status: 502 }],
    [{ error: { code: '1113', message: 'no' } }, { blame: 'server', status: 429 }],
    [{ error: { code: '1309', message: 'no' } }, { blame: 'server', status: 429 }],
    [{ error: { code: '11130', message: 'no' } }, { blame: 'server', status: 502 }],
  ]);
});

test("the wait in Google's RetryInfo is read as decimal seconds", () => {
  const limited = (retryDelay: unknown) => [
    { error: { code: 429, details: [{ links: [] }, { '@type': 'RetryInfo', retryDelay }] } },
  ];
  check([
    [limited('26.66s'), { retrySeconds: 26.66 }],
    [limited('0s'), { retrySeconds: 0 }],
    [limited('26s'), { retrySeconds: 26 }, 429],
    [limited('26'), { retrySeconds: undefined }],
    [limited('-1s'), { retrySeconds: undefined }],
    [limited(26), { retrySeconds: undefined }],
    [{ error: { details: { retryDelay: '26s' } } }, { retrySeconds: undefined }],
  ]);
});

test('JSON without a choice is a failure if it has an error, a message or a bad state', () => {
  const failures: unknown[] = [
    { error: 'boom' },
    { error: { message: 'boom' }, choices: null },
    { object: 'error', message: 'boom' },
    { code: 500, msg: 'boom' },
    { detail: [{ msg: 'boom' }] },
    { error_msg: 'boom' },
    { base_resp: { status_code: 1004, status_msg: 'boom' } },
    { base_resp: { status_msg: 'boom' } },
    { error: { message: 'boom' }, choices: [] },
    { base_resp: { status_code: 1008, status_msg: 'boom' }, choices: [] },
  ];
  const answers: unknown[] = [
    { error: { message: 'boom' }, choices: [{}] },
    { base_resp: { status_code: 1008, status_msg: 'boom' }, choices: [{}] },
    { base_resp: { status_code: 0, status_msg: 'success' }, choices: [] },
    { message: 'boom', choices: [] },
    { error: {}, choices: [] },
    { msg: 'boom', choices: [{}] },
    { base_resp: { status_code: 0, status_msg: 'success' } },
    { base_resp: { status_code: 1004, status_msg: '' } },
    { message: ' ' },
    { type: 'message_start', message: { role: 'assistant', content: [], detail: 'high' } },
    { type: 'message_start', message: { role: 'assistant', content: [], error: 'none' } },
    { message: [{ message: 'boom' }] },
    { usage: {} },
    { error: {} },
    {},
    null,
    'boom',
  ];
  assert.deepEqual([...failures, ...answers].filter(reportsFailure), failures);
});

test('a word is a code in lower case without separators, up to 200 characters', () => {
  assert.equal(toWord('Invalid-Parameter.2'), 'invalidparameter2');
  assert.equal(toWord(), '');
  assert.equal(toWord('x'.repeat(200)).length, 200);
  assert.equal(toWord('x'.repeat(201)), '');
});
