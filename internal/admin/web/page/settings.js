// The settings of PostgreSQL: what the group has, what each server has, and where they differ. They are read here, and
// changed elsewhere: some of them run programs, for which a cookie is not enough.

import { h } from './dom.js';
import { list } from './format.js';
import { script } from './pages.js';
import { aged, card, lacking, state, table } from './parts.js';

const own = 'coterie.parameters', servers = 'coterie.settings';
const mostRows = 120;

const quietly = (text) => h('span', { class: 'quiet' }, text);
const same = (values) => values.every((v) => v === values[0]);

/** settings is the screen. */
export function settings(app) {
  return [
    card('Settings of the group', aged(app, own), h('p', { class: 'quiet' }, 'The group has these for every replica, also for one that joins later, and puts back what ALTER SYSTEM changes.'), group(app)),
    every(app),
  ];
}

// byName returns the rows of a view by the names of their settings.
function byName(rows) {
  const of = new Map();
  for (const r of rows ?? []) of.set(r.name, [...(of.get(r.name) ?? []), r]);
  return [...of].map(([name, at]) => ({ $key: name, setting: name, at })).sort((a, b) => a.setting.localeCompare(b.setting));
}

function group(app) {
  const rows = app.rows(own) && byName(app.rows(own));
  return table('Settings of the group', [
    { label: 'Setting', class: 'mono', cell: (r) => r.setting },
    { label: 'Value', class: 'mono', cell: (r) => wanted(r.at) },
    { label: 'In force', cell: (r) => inForce(r.at) },
    { label: 'Change', class: 'right', cell: (r) => changeButton(app, r.setting, r.at[0].value) },
  ], rows, 'The group has none of its own: the configuration of each server counts.', lacking(app, own));
}

// wanted shows the group's value, and those that replicas have instead.
function wanted(at) {
  const common = at.find((r) => !r.of_replica);
  return [common ? hidden(common.value) : quietly('no common value'), at.filter((r) => r.of_replica).map((r) => h('div', null, quietly(`${r.node} `), hidden(r.value)))];
}

const hidden = (value) => (value === null ? quietly('not shown: it may hold a secret') : value === '' ? quietly('empty') : value);

// inForce says where the value is in force, and where another one is or a restart is waited for.
function inForce(at) {
  const names = (rows) => list(rows.map((r) => r.node));
  const silent = at.filter((r) => r.pending_restart === null), waits = at.filter((r) => r.pending_restart);
  if (waits.length) return state('warn', `once ${names(waits)} ${waits.length === 1 ? 'is' : 'are'} restarted`);
  if (silent.length === at.length) return state('bad', 'not known: no server answers');
  return silent.length ? state('warn', `${names(silent)} ${silent.length === 1 ? 'does' : 'do'} not answer`) : state('good', 'on every replica');
}

// given reports whether the agent gives a server that value at its start, or the server sets it by itself.
const given = (x) => x.source === 'command line' || x.source === 'override';

const filters = {
  '': ['Changed', (r) => r.at.some((x) => x.source !== 'default' && !given(x))],
  differ: ['Differ', (r) => r.differ],
  pending: ['Wait for a restart', (r) => r.at.some((x) => x.pending_restart)],
  all: ['All', () => true],
};

function every(app) {
  const view = app.rows(servers), nodes = [...new Set((view ?? []).map((r) => r.node))];
  const rows = view && byName(view).map((r) => ({ ...r, differ: r.at.length < nodes.length || !same(r.at.map((x) => x.value)) }));
  const shown = app.settingsShown ?? '', find = (app.settingsFind ?? '').toLowerCase();
  const found = rows?.filter((r) => filters[shown][1](r) && (!find || r.setting.toLowerCase().includes(find)));
  const ofGroup = new Set((app.rows(own) ?? []).map((r) => r.name));
  const columns = [
    { label: 'Setting', class: 'mono', cell: (r) => r.setting },
    { label: 'Value', class: 'mono', cell: (r) => values(r) },
    { label: 'Source', cell: (r) => (ofGroup.has(r.setting) ? 'the group' : r.at.every(given) ? quietly('the agent, at the start') : same(r.at.map((x) => x.source)) ? r.at[0].source : [...new Set(r.at.map((x) => x.source))].join(', ')) },
    { label: 'State', cell: (r) => [r.at.some((x) => x.pending_restart) ? state('warn', `${list(r.at.filter((x) => x.pending_restart).map((x) => x.node))}: waits for a restart`) : r.differ ? state('warn', 'differs') : quietly(nodes.length > 1 ? 'the same everywhere' : '–')] },
    { label: 'Change', class: 'right', cell: (r) => !r.at.every(given) && changeButton(app, r.setting, r.at[0].value) },
  ];
  return card('Settings of the servers', [aged(app, servers), quietly(nodes.length ? `of ${list(nodes)}` : '')],
    h('div', { class: 'sift' }, h('div', { class: 'chips', role: 'group', 'aria-label': 'kinds of settings' }, Object.entries(filters).map(([k, [label, is]]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(k === shown), onclick: () => app.set({ settingsShown: k }) }, label, rows && quietly(` ${rows.filter(is).length}`)))),
      h('input', { type: 'search', id: 'find-setting', 'aria-label': 'find settings by their names', placeholder: 'Find…', maxlength: '63', oninput: (e) => app.set({ settingsFind: e.target.value }) })),
    h('div', { class: 'dense' }, h('div', rows ? { memo: `${app.seen[servers]} ${app.seen[own]} ${shown} ${find} ${app.old}`, build: () => table('Settings of the servers', columns, found.slice(0, mostRows), rows.length ? 'No setting is of this kind.' : 'No server answers.') } : null, !rows && table('', columns, null, '', lacking(app, servers)))),
    found?.length > mostRows && h('p', { class: 'quiet' }, `The first ${mostRows} of ${found.length} are shown.`));
}

// values shows one value where all servers have it, or each server's.
function values(r) {
  const show = (v) => (v.startsWith('hidden:') ? quietly('not shown: it may hold a secret') : hidden(v));
  return r.differ ? r.at.map((x) => h('div', null, quietly(`${x.node} `), x.value.startsWith('hidden:') ? quietly(x.value) : show(x.value))) : show(r.at[0].value);
}

const simple = /^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$/; // not a collation, nor what one role or database has

function changeButton(app, setting, value) {
  if (!simple.test(setting)) return null;
  const known = value === null || value?.startsWith('hidden:') ? '' : value ?? '';
  return h('button', { type: 'button', class: 'act', 'aria-label': `Script that changes ${setting}`, onclick: () => app.set({ dialog: { kind: 'setting', title: setting, setting, value: known, to: '' } }) }, 'Script…');
}

/** settingBody returns what the dialog of a setting shows: what changes it, to be run elsewhere. */
export function settingBody(app, d) {
  const set = (x) => app.set({ dialog: { ...app.dialog, ...x } });
  const word = /^[\w.:/-]+$/.test(d.value) ? d.value : `'${d.value.replaceAll("'", "'\\''")}'`;
  const name = /^[a-z_][a-z0-9_]*$/.test(app.status?.group ?? '') ? app.status.group : `[${(app.status?.group ?? '').replaceAll(']', ']]')}]`;
  const replicas = (app.status?.replicas ?? []).filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY').map((r) => r.name);
  return {
    wide: true,
    content: [
      h('label', { for: 'value' }, 'Value'), h('input', { id: 'value', value: d.value, autocomplete: 'off', spellcheck: 'false', maxlength: '1000', oninput: (e) => set({ value: e.target.value }) }),
      h('label', { for: 'to' }, 'For'), h('select', { id: 'to', onchange: (e) => set({ to: e.target.value }) }, [['', 'every replica'], ...replicas.map((r) => [r, `${r} alone`])].map(([v, text]) => h('option', { value: v, selected: v === d.to }, text))),
      h('p', { class: 'quiet' }, 'Nothing is changed here: settings can run programs, so only a superuser or the node’s own command changes them. Every replica judges the value first. Run one of these, on any node:'),
      h('h3', null, 'In a shell'), script(app, d, `coterie settings set ${d.setting}=${word}${d.to ? ` --replica ${d.to}` : ''}`),
      h('h3', null, 'In the database coterie, as a superuser'), script(app, d, `ALTER AVAILABILITY GROUP ${name} SET PARAMETER ${d.setting} = '${d.value.replaceAll("'", "''")}'${d.to ? ` FOR REPLICA N'${d.to}'` : ''};`),
    ],
  };
}
