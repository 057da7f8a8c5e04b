import { api, Refused } from './api.js';
import { outcome } from './change.js';
import { h } from './dom.js';
import { openJoin } from './join.js';
import { course, findings, pagesOf, script, select, verdict } from './pages.js';
import { sign } from './parts.js';

// The pages of the wizard, in their order. The last three show what was checked, and what becomes of it.
const pages = ['Options', 'Databases', 'Replicas', 'Listener', 'Validation', 'Summary', 'Result'];
const [validation, summary, result] = [4, 5, 6];

/** openFounding opens the wizard by which a group is made, with what this user entered before. */
export function openFounding(app) {
  const kept = app.kept?.user === app.me.user ? app.kept.form : null;
  const form = kept ?? {
    group: '', profile: (app.status.profile || 'default').toUpperCase(), level: '3', timeout: '10000', dbFailover: 'ON', rule: 'QUORUM', required: 'DEFAULT', nodes: {}, chosen: {}, created: '', listener: '', addresses: '', port: '',
  };
  app.set({ kept: { user: app.me.user, form }, dialog: { kind: 'founding', title: 'New availability group', page: 0, databases: null } });
  readDatabases(app);
}

async function readDatabases(app) {
  try {
    const found = (await api.view('coterie.databases')).rows.map((r) => r.name);
    if (app.dialog?.kind === 'founding') app.set({ dialog: { ...app.dialog, databases: found } });
  } catch (e) {
    app.failed(e);
    if (app.dialog?.kind === 'founding') app.set({ dialog: { ...app.dialog, databases: [] } });
  }
}

const isWitness = (r) => r.availability_mode === 'CONFIGURATION_ONLY';

// nodesOf returns the nodes that have joined each other, each with what is chosen for it. The one with the data is first.
function nodesOf(app, f) {
  const first = app.status.primary;
  return [...app.status.replicas ?? []].sort((a, b) => (b.name === first) - (a.name === first)).map((r) => ({
    name: r.name, first: r.name === first, witness: isWitness(r), part: true, mode: 'SYNCHRONOUS_COMMIT', failover: 'AUTOMATIC', readers: 'READ_ONLY', routing: '', ...f.nodes[r.name], ...(r.name === first || isWitness(r) ? { part: true } : {}),
  }));
}

const lines = (text) => text.split('\n').map((x) => x.trim()).filter(Boolean);

// founding returns the document of the group: its name, what is chosen, and each replica with its modes.
function founding(app, f) {
  const doc = { group: f.group.trim(), options: { LEASE_PROFILE: f.profile } };
  const given = { FAILURE_CONDITION_LEVEL: [f.level, '3'], HEALTH_CHECK_TIMEOUT: [f.timeout.trim(), '10000'], DB_FAILOVER: [f.dbFailover, 'ON'], COMMIT_RULE: [f.rule, 'QUORUM'], REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT: [f.required, 'DEFAULT'] };
  for (const [name, [value, usual]] of Object.entries(given)) if (value && value !== usual) doc.options[name] = value;
  doc.replicas = nodesOf(app, f).filter((n) => n.part).map((n) => {
    const async = n.mode !== 'SYNCHRONOUS_COMMIT';
    if (n.witness) return { replica: n.name, options: { AVAILABILITY_MODE: 'CONFIGURATION_ONLY', FAILOVER_MODE: 'MANUAL' } };
    const r = { replica: n.name, options: { AVAILABILITY_MODE: n.mode, FAILOVER_MODE: async ? 'MANUAL' : n.failover } };
    if (n.readers !== 'READ_ONLY') r.secondary_role = { ALLOW_CONNECTIONS: n.readers };
    if (n.routing) r.primary_role = { READ_ONLY_ROUTING_LIST: n.routing };
    return r;
  });
  const names = [...Object.keys(f.chosen).filter((n) => f.chosen[n]), ...lines(f.created)];
  if (names.length) doc.databases = [...new Set(names)];
  if (f.listener.trim()) doc.listener = { name: f.listener.trim(), addresses: f.addresses.split(/[\s,]+/).filter(Boolean), ...(f.port.trim() ? { port: Number(f.port) } : {}) };
  return doc;
}

/** foundingBody returns what the page of the wizard shows. */
export function foundingBody(app, d) {
  const set = (x) => app.dialog?.kind === 'founding' && app.set({ dialog: { ...app.dialog, ...x } });
  const turn = (page) => {
    set({ page, error: '', hint: '' });
    requestAnimationFrame(() => document.getElementById('dialog-title')?.focus());
  };
  const f = app.kept?.form;
  const change = (name) => (value) => {
    app.kept = { ...app.kept, form: { ...app.kept.form, [name]: value } };
    set({ error: '', hint: '' });
  };
  const body = [optionsPage, databasesPage, replicasPage, listenerPage, checkedPage, summaryPage, resultPage][d.page](app, d, f, change, set, turn);
  const next = d.page < validation ? { verb: 'Next', submit: () => check(app, d.page + 1, set, turn) } : {};
  return { back: d.page > 0 && d.page < result ? () => turn(d.page - 1) : null, wide: true, ...next, ...body, content: [pagesOf(pages, d.page), body.content] };
}

// check has the node say what it finds of all that is entered, and turns to the page unless there is a problem: those of
// the pages before were solved on them.
async function check(app, page, set, turn) {
  const doc = founding(app, app.kept.form);
  set({ busy: true, error: '', hint: '', plan: null });
  try {
    const plan = await api.planGroup(doc);
    const problem = plan.findings.find((x) => x.level === 'PROBLEM');
    set({ busy: false, plan, doc }); // what was checked is what is made, not what was typed meanwhile
    if (problem && page <= validation && app.dialog.page < validation) return set({ error: problem.what, hint: problem.run ?? '' });
    turn(page);
  } catch (e) {
    app.failed(e);
    set({ busy: false, error: e instanceof Refused ? e.message : 'This node does not answer.', hint: e.hint ?? '' });
  }
}

const field = (id, label, value, onchange, about, more = {}) => [
  h('label', { for: id, 'data-key': `${id}-label` }, label),
  h(more.rows ? 'textarea' : 'input', { id, 'data-key': id, value: more.rows ? null : value, maxlength: '63', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', 'aria-describedby': about ? `${id}-about` : null, oninput: (e) => onchange(e.target.value), ...more }, more.rows ? value : null),
  about && h('p', { id: `${id}-about`, 'data-key': `${id}-about`, class: 'quiet' }, about),
];

function optionsPage(app, d, f, change) {
  return {
    content: [
      field('group', 'Name of the group', f.group, change('group'), null, { required: true }),
      select('profile', 'Lease', f.profile, [['DEFAULT', 'default: a silent primary is replaced after 6.5 s'], ['FAST', 'fast: after 3 s, for machines that answer quickly'], ['WAN', 'wan: after 17 s, for distant members']], change('profile')),
      select('dbfailover', 'When a registered database fails', f.dbFailover, [['ON', 'the group fails over'], ['OFF', 'the group stays where it is']], change('dbFailover')),
      h('details', { class: 'more', 'data-key': 'health' }, h('summary', null, 'Health detection'), h('div', { class: 'stack' },
        select('level', 'What counts as the failure of a primary that runs', f.level, [['1', '1: the server has ended'], ['2', '2: it answers no new connection, too'], ['3', '3: a disk fails, or the server crashes again and again, too'], ['4', '4: a disk is full, or not even a superuser finds room, too'], ['5', '5: commits do not end, too']], change('level')),
        field('timeout', 'A probe may go unanswered, in ms', f.timeout, change('timeout'), null, { inputmode: 'numeric', maxlength: '10' }))),
    ],
  };
}

function databasesPage(app, d, f, change) {
  const tick = (name) => (e) => change('chosen')({ ...app.kept.form.chosen, [name]: e.target.checked });
  return {
    content: [
      h('p', null, `All of ${app.status.primary ?? 'the first primary'} is copied, each database of it. Those that you register are watched, and one that fails can make the group fail over. With none registered, the first 32 are watched.`),
      d.databases?.length > 0 && h('fieldset', { class: 'ticks' }, h('legend', null, `On ${app.status.primary ?? 'the first primary'}`),
        d.databases.map((name, i) => h('label', { 'data-key': `db-${name}` }, h('input', { type: 'checkbox', id: `db-${i}`, checked: Object.hasOwn(f.chosen, name) && f.chosen[name], onchange: tick(name) }), h('span', null, name)))),
      field('created', 'New databases, one a line', f.created, change('created'), 'They are created empty.', { rows: '2', maxlength: '8000' }),
    ],
  };
}

function replicasPage(app, d, f, change) {
  const nodes = nodesOf(app, f);
  const give = (n, name) => (value) => change('nodes')({ ...app.kept.form.nodes, [n.name]: { ...app.kept.form.nodes[n.name], [name]: value } });
  const most = Math.max(0, nodes.filter((n) => n.part && !n.witness && n.mode === 'SYNCHRONOUS_COMMIT').length - 1);
  return {
    content: [
      nodes.map((n) => node(n, give)),
      nodes.length === 1 && h('p', { class: 'quiet' }, 'Other machines join once the group is made: Add a member.'),
      most > 0 && [
        select('rule', 'Commits wait for', f.rule, [['QUORUM', 'as many secondaries as failures are survived'], ['ALL', 'every synchronized secondary']], change('rule')),
        select('required', 'Synchronized secondaries that have to be there', f.required, [['DEFAULT', 'by the rule above'], ...Array.from({ length: most + 1 }, (_, i) => [String(i), i === 0 ? '0: the primary goes on alone' : `${i}: with fewer, commits wait`])], change('required')),
      ],
    ],
  };
}

function node(n, give) {
  const id = (x) => `${x}-${n.name}`;
  const about = n.first ? 'has the data, the first primary' : n.witness ? 'a witness: a vote without data' : '';
  return h('fieldset', { class: 'node-options', 'data-key': n.name },
    h('legend', null, h('b', null, n.name), about && h('span', { class: 'quiet' }, ` ${about}`)),
    !n.first && !n.witness && h('label', { class: 'tick' }, h('input', { type: 'checkbox', id: id('part'), checked: n.part, onchange: (e) => give(n, 'part')(e.target.checked) }), h('span', null, 'is a replica of the group')),
    n.part && !n.witness && h('div', { class: 'pairs', 'data-key': 'pairs' },
      h('div', { 'data-key': 'mode' }, select(id('mode'), 'Commits, while it is a secondary', n.mode, [['SYNCHRONOUS_COMMIT', 'wait for it'], ['ASYNCHRONOUS_COMMIT', 'do not wait for it']], give(n, 'mode'))),
      n.mode === 'SYNCHRONOUS_COMMIT' && h('div', { 'data-key': 'failover' }, select(id('failover'), 'Failover to it', n.failover, [['AUTOMATIC', 'by itself, or planned'], ['MANUAL', 'when somebody asks for it']], give(n, 'failover'))),
      h('div', { 'data-key': 'readers' }, select(id('readers'), 'Readers on it, as a secondary', n.readers, [['READ_ONLY', 'those that say they only read'], ['ALL', 'everybody'], ['NO', 'none']], give(n, 'readers'))),
      h('div', { 'data-key': 'routing' }, select(id('routing'), 'Readers, while it is primary, go to', n.routing, [['', 'the secondaries, in turn'], ['NONE', 'itself']], give(n, 'routing')))));
}

function listenerPage(app, d, f, change) {
  return {
    content: [
      h('p', null, 'Clients reach the group at each node already. A listener is one name for all of them, with addresses that move with the primary. It may stay empty.'),
      field('listener', 'Name', f.listener, change('listener'), 'as it is in DNS; it gets into the certificates'),
      field('addresses', 'Addresses', f.addresses, change('addresses'), 'with the length of the prefix, for example 10.0.0.9/24; none: the name is all', { maxlength: '2000' }),
      field('port', 'Port', f.port, change('port'), 'none: that of the nodes', { inputmode: 'numeric', pattern: '[0-9]*', maxlength: '5' }),
    ],
  };
}

function checkedPage(app, d, f, change, set, turn) {
  const found = d.plan?.findings ?? [], bad = found.some((x) => x.level === 'PROBLEM');
  return {
    verb: bad ? null : 'Next', submit: () => turn(summary),
    content: [
      verdict(found, 'The group can be made.'),
      findings(found),
      h('p', null, h('button', { type: 'button', class: 'act', disabled: d.busy, onclick: () => check(app, validation, set, turn) }, 'Check again')),
    ],
  };
}

function summaryPage(app, d, f, change, set, turn) {
  return {
    verb: 'Make the group', submit: () => make(app, set, turn),
    content: [
      h('p', null, 'This page executes these statements, one after the other. The same by hand:'),
      script(app, d, d.plan.script),
    ],
  };
}

// make asks for the group, and goes on with its replicas once it is there.
async function make(app, set, turn) {
  const mine = Symbol('group');
  set({ busy: true, error: '', hint: '' });
  try {
    const deed = await api.change('create', app.dialog.doc);
    app.deeds[deed.id] ??= deed;
    set({ busy: false, deed: deed.id, mine, joins: {} });
    turn(result);
    attend(app, mine, set);
  } catch (e) {
    app.failed(e);
    const known = e instanceof Refused;
    set({ busy: false, error: known ? e.message : 'This node does not answer. It may have made the group all the same: look at the first screen.', hint: known ? e.hint : '', number: known ? e.number : 0 });
  }
}

// attend follows the statements as long as the dialog is open, and has each other replica join.
async function attend(app, mine, set) {
  while (app.me && app.dialog?.mine === mine) {
    const d = app.dialog;
    for (const id of [d.deed, ...Object.values(d.joins)]) {
      if (app.deeds[id]?.state === 'running') app.deeds[id] = await api.operation(id).catch(() => app.deeds[id]);
    }
    const next = app.deeds[d.deed]?.state === 'done' && d.plan.joins?.find((name) => !Object.hasOwn(d.joins, name));
    if (next && !d.error) {
      try {
        const deed = await api.change('join', { replica: next });
        app.deeds[deed.id] ??= deed;
        set({ joins: { ...app.dialog?.joins, [next]: deed.id } });
        continue;
      } catch (e) {
        app.failed(e);
        if (e instanceof Refused && e.code !== 503 && e.code !== 429) set({ error: e.message, hint: 'Join… on the screen Replicas tries again.', number: e.number });
      }
    }
    app.set({});
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function resultPage(app, d) {
  const made = app.deeds[d.deed];
  if (!made || made.state === 'failed') return { content: outcome(made) };
  const steps = stepsOf(app, d, made), over = steps.every(([, done]) => done);
  if (over) app.kept = null;
  return {
    verb: over ? 'Add a member…' : null, leave: 'Close', submit: () => openJoin(app),
    content: [
      course(steps),
      (made.notices ?? []).map((n) => h('p', { class: 'quiet' }, n.message)),
      h('p', { class: `outcome ${over ? 'good' : ''}`, role: 'status' }, over && [sign('good'), h('span', null, `${app.status.primary ?? 'Nobody'} is the primary of ${d.doc.group}.`)]),
      !over && made.state === 'done' && h('p', { class: 'quiet' }, 'Leave this open until each replica has joined.'),
    ],
  };
}

// The steps of the group, each with whether it is reached, and what is said about it now.
function stepsOf(app, d, made) {
  const is = (name) => app.status?.replicas?.find((r) => r.name === name);
  const steps = [[`${d.doc.group} is made`, made.state === 'done' && !app.status?.draft, '']];
  for (const name of d.plan.joins ?? []) {
    const r = is(name), joined = Boolean(r && !r.join_state && app.deeds[d.joins[name]]);
    const sync = d.doc.replicas.find((x) => x.replica === name)?.options.AVAILABILITY_MODE === 'SYNCHRONOUS_COMMIT';
    const copied = joined && ['SYNCHRONIZED', 'SYNCHRONIZING'].includes(r.synchronization_state) && !r.busy;
    steps.push([`${name} has joined`, joined, ''], [sync ? `${name} is synchronized` : `The copy of ${name} is made`, copied && (!sync || r.synchronization_state === 'SYNCHRONIZED'), r?.progress ?? '']);
  }
  return steps;
}
