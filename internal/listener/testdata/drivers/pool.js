// What node-postgres' pool makes of a primary that is killed. Arguments: host, read-write port. The retry loop catches
// 40001, and runs the transaction again on a connection of the pool.
const { Pool } = require('pg');
const readline = require('readline');
const [host, port] = process.argv.slice(2);
const WHERE = "select current_setting('cluster_name') as name";
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = async (...words) => { console.log(...words); await lines.next(); };
const pool = new Pool({ host, port: Number(port), user: 'postgres', database: 'postgres', ssl: false, max: 2, idleTimeoutMillis: 0 });
let made = 0, tries = 0;
pool.on('connect', () => { made += 1; });
pool.on('error', () => {}); // an idle connection has ended
const seen = [];
const where = async (c) => (await c.query(WHERE)).rows[0].name;
const attempt = async () => {
  const c = await pool.connect();
  try {
    tries += 1;
    await c.query('begin');
    const name = await where(c);
    if (tries === 1) await say('open', name);
    const again = await where(c);
    await c.query('commit');
    c.release();
    return again;
  } catch (e) {
    seen.push(e.code || 'none');
    await c.query('rollback').then(() => c.release(), (broken) => c.release(broken));
    return null;
  }
};
(async () => {
  const [a, b] = [await pool.connect(), await pool.connect()];
  await a.query('select 1'); await b.query('select 1');
  b.release(); a.release();
  await say('pooled');
  let name = null;
  for (let i = 0; i < 5 && name === null; i += 1) name = await attempt();
  const both = [await pool.connect(), await pool.connect()];
  const names = new Set([await where(both[0]), await where(both[1])]);
  console.log('heard', seen.join(','), 'then', name, 'both at', [...names].join(' '), 'connections', made);
  process.exit(0);
})();
