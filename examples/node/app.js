// Makes one order for each line of standard input, and prints the line once the order is safe. It goes on through a
// failover: examples/README.md. It needs the module pg, which reads PGUSER, PGPASSWORD and PGDATABASE.
const { Client } = require('pg');
const readline = require('readline');

const PATIENCE = 120000; // milliseconds for one order, with all its attempts
const PAUSE = 200; // milliseconds between two attempts

// SQLSTATEs after which no commit can have happened, not even of a COMMIT that was sent.
const NOT_DONE = ['57P01', '57P03', '40001', '40P01', '53300'];

const hosts = process.env.APP_HOSTS.split(',');
let client = null; // the one connection of this program
let committing = false;

// order makes an order exactly once, however many attempts that takes.
async function order(key) {
  let unknown = false; // whether an earlier attempt may have been committed
  for (const end = Date.now() + PATIENCE; ; await new Promise((done) => setTimeout(done, PAUSE))) {
    committing = false;
    try {
      return await attempt(key, unknown);
    } catch (thrown) {
      const err = (client && client.said) || thrown; // the server's last words may have come before the query
      if (client) client.end().catch(() => {}); // it is closed already, or in a state that is not worth finding out
      client = null;
      if (Date.now() > end) throw err;
      const state = err.severity ? err.code : null; // without a severity it is not the server that said it
      if (NOT_DONE.includes(state)) {
        // try again
      } else if (committing || state === '08007' || state === '23505') {
        unknown = true; // look for it first
      } else if (state) {
        throw err; // a mistake in the statement, or no permission: the next attempt would end in the same way
      }
      console.error(`order ${key}: again, unknown=${unknown}: ${err.message}`);
    }
  }
}

// attempt makes the order in one transaction, unless it is there.
async function attempt(key, look) {
  if (!client) client = await connect();
  if (look) {
    const found = await client.query('select exists (select from orders where key = $1) as there', [key]);
    if (found.rows[0].there) return;
  }
  await client.query('begin');
  await client.query('insert into orders (key) values ($1)', [key]);
  await client.query("update stock set taken = taken + 1 where item = 'book'");
  committing = true;
  await client.query('commit');
}

// connect tries the next host each time: pg takes one host only.
async function connect() {
  const next = hosts.shift();
  hosts.push(next);
  const colon = next.lastIndexOf(':');
  const c = new Client({
    host: next.slice(0, colon),
    port: Number(next.slice(colon + 1)),
    connectionTimeoutMillis: 5000,
    query_timeout: 30000, // a machine without power answers nothing
    options: '-c coterie.reads=durable', // what such a read shows, no failover takes away
  });
  c.on('error', (err) => { c.said = c.said || err; }); // without this the process ends when a connection does
  await c.connect();
  return c;
}

(async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    await order(line);
    console.log(line);
  }
  if (client) await client.end();
})().catch((err) => { console.error(err.message); process.exit(1); });
