// What node-postgres makes of the listener. Arguments: host, read-write port, read-only port.
const { Client } = require('pg');
const [host, rw, ro] = process.argv.slice(2);
const connect = async (port) => {
  const c = new Client({ host, port: Number(port), user: 'postgres', database: 'postgres', ssl: false });
  c.on('error', (e) => { c.last = c.last || e; }); // the server's farewell comes first, if nothing is under way
  await c.connect();
  return c;
};
const state = async (c) => {
  try { await c.query('select 1'); return 'answered'; } catch (e) { return (c.last || e).code || String(e); }
};
(async () => {
  const [idle, open, reader] = [await connect(rw), await connect(rw), await connect(ro)];
  const sum = await idle.query({ name: 'add', text: 'select $1::int + $2::int as n', values: [40, 2] });
  const [a, b] = [await idle.query('show cluster_name'), await reader.query('show cluster_name')];
  await open.query('begin');
  await open.query('select 1');
  console.log('ready', sum.rows[0].n, a.rows[0].cluster_name, b.rows[0].cluster_name);
  process.stdin.once('data', async () => {
    await new Promise((r) => setTimeout(r, 500));
    console.log('heard', await state(idle), await state(open));
    process.exit(0);
  });
})();
