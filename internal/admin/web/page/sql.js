import { api } from './api.js';
import { h } from './dom.js';
import { card, skeleton } from './parts.js';

const first = 'SELECT name, role, synchronization_state, behind_bytes\nFROM coterie.replicas\nORDER BY name';
const mostRows = 500;

/** sql is the screen for queries on the views. */
export function sql(app) {
  const q = app.sql;
  const run = async () => {
    const text = document.getElementById('sql').value;
    app.set({ sql: { ...q, busy: true } });
    const began = performance.now();
    try {
      const answer = await api.query(text);
      app.set({ sql: { ...app.sql, busy: false, answer, error: null, took: performance.now() - began, run: (q.run ?? 0) + 1 } });
    } catch (error) {
      app.failed(error);
      app.set({ sql: { ...app.sql, busy: false, error, answer: null } });
    }
  };
  const choose = (name) => {
    const box = document.getElementById('sql');
    box.value = `SELECT * FROM ${name}`;
    box.focus();
    run();
  };
  if (!q.names) {
    q.names = [];
    api.views().then((names) => app.set({ sql: { ...app.sql, names } }), (e) => app.failed(e));
  }
  return h('div', { class: 'sql' },
    card('Views', null, h('nav', { class: 'names', 'aria-label': 'views' }, q.names.length ? q.names.map((n) => h('button', { type: 'button', 'data-key': n, title: n, onclick: () => choose(n) }, n)) : skeleton(6))),
    h('div', null,
      card('Query', h('span', { class: 'quiet' }, 'reads the views; the data is in other databases'),
        h('label', { class: 'hidden', for: 'sql' }, 'SQL on the views'),
        h('textarea', { id: 'sql', class: 'mono', rows: '6', spellcheck: 'false', onkeydown: (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); run(); } } }, first),
        h('p', { class: 'row' }, h('button', { type: 'button', class: 'main', disabled: q.busy, onclick: run }, q.busy ? 'Running…' : 'Run'), h('span', { class: 'quiet' }, 'Ctrl+Enter'))),
      q.error && h('section', { class: 'card problems', role: 'alert' }, h('p', null, h('b', null, q.error.message)), q.error.hint && h('p', { class: 'quiet' }, q.error.hint)),
      q.answer && card(`${q.answer.rows.length} ${q.answer.rows.length === 1 ? 'row' : 'rows'}`, h('span', { class: 'quiet' }, `${Math.round(q.took)} ms`),
        (q.answer.notices ?? []).map((n) => h('p', { class: 'quiet' }, n)), h('div', { memo: q.run, build: () => result(q.answer) }))));
}

function result(answer) {
  const numeric = (t) => /int|double|numeric|oid/.test(t);
  const show = (v) => (v === null ? h('span', { class: 'quiet' }, 'NULL') : String(v));
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'rows' },
    h('table', { class: 'plain' }, h('thead', null, h('tr', null, answer.columns.map((c) => h('th', { scope: 'col', title: c.type, class: numeric(c.type) && 'right' }, c.name)))),
      h('tbody', null, answer.rows.slice(0, mostRows).map((r) => h('tr', null, r.map((v, i) => h('td', { class: numeric(answer.columns[i].type) && 'right' }, show(v))))))),
    answer.rows.length > mostRows && h('p', { class: 'quiet' }, `The first ${mostRows} rows are shown.`));
}
