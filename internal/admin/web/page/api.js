// The API of the node that the page comes from: nothing else is asked.

/** Refused is the error of an answer that is not what was asked for. */
export class Refused extends Error {
  constructor(code, error) {
    super(error?.message ?? `the node answered ${code}`);
    this.code = code;
    this.hint = error?.hint ?? '';
    this.state = error?.state ?? '';
    this.number = error?.number ?? 0;
    this.position = error?.position ?? 0;
  }
}

async function call(method, path, body, headers = {}, see = () => {}) {
  const answer = await fetch('/api/v1/' + path, {
    method,
    headers: body === undefined ? headers : { 'Content-Type': 'application/json', ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(20000),
  });
  see(answer.headers);
  if (answer.status === 204) return null;
  const doc = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, doc?.error);
  return doc;
}

export const api = {
  byCertificate: false, // only a certificate logs in here: the node is a witness
  session: () => call('GET', 'session', undefined, {}, (h) => { api.byCertificate = h.get('Coterie-Login') === 'certificate'; }),
  logIn: (user, password) => call('POST', 'session', { user, password }),
  logOut: () => call('DELETE', 'session'),
  view: async (name) => rowsOf(await call('GET', 'views/' + name)),
  views: async () => rowsOf(await call('GET', 'views')).rows.map((r) => r.name),
  query: (sql) => call('POST', 'query', { sql }),
  prove: (password) => call('POST', 'session/proof', { password }),
  options: () => call('GET', 'options'),
  plan: (member) => call('POST', 'plan', member),
  planGroup: (group) => call('POST', 'plan/create', group),
  token: (role, minutes) => call('POST', 'token', { role, minutes }, { 'Idempotency-Key': newKey() }),
  seedings: () => call('GET', 'seedings'),
  history: (span) => call('GET', 'history?span=' + span),
  operation: (id) => call('GET', 'operations/' + id),
  change,
};

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');

/**
 * change asks for a change and returns how far it is. Where the answer is lost the same change is asked for once more:
 * by its key the node makes it once.
 */
async function change(name, body) {
  const headers = { 'Idempotency-Key': newKey(), Prefer: 'respond-async' };
  try {
    return await call('POST', name, body, headers);
  } catch (e) {
    if (e instanceof Refused) throw e;
    await new Promise((done) => setTimeout(done, 1000));
    return call('POST', name, body, headers);
  }
}

/** rowsOf gives a table rows with names. */
export function rowsOf(table) {
  const names = table.columns.map((c) => c.name);
  return { at: table.at, rows: table.rows.map((r) => Object.fromEntries(r.map((v, i) => [names[i], v]))) };
}

/**
 * follow opens the stream of events, and opens it again whenever it ends. It calls back with each message, and with
 * "lost" when there is no connection. It returns functions that end it, and that open it anew.
 */
export function follow(on) {
  let source, timer, wait = 500, over = false;
  const open = () => {
    source = new EventSource('/api/v1/events');
    for (const kind of ['reset', 'event', 'status', 'operation', 'ended']) {
      source.addEventListener(kind, (e) => {
        wait = 500;
        on(kind, JSON.parse(e.data));
      });
    }
    source.onerror = () => {
      on('lost');
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
      timer = setTimeout(again, wait * (0.75 + Math.random() / 2));
      wait = Math.min(wait * 2, 8000);
    };
  };
  const again = async () => {
    try {
      if ((await api.session()) === null) return on('ended');
    } catch {
      // The node does not answer: the stream is tried, and fails likewise.
    }
    if (!over) open();
  };
  open();
  return {
    end: () => {
      over = true;
      clearTimeout(timer);
      source.close();
    },
    // renew opens the stream anew: one may stay open to a node that is gone, and nothing comes by it.
    renew: () => {
      clearTimeout(timer);
      source.close();
      open();
    },
  };
}
