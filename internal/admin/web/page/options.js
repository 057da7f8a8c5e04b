import { api, Refused } from './api.js';
import { outcome } from './change.js';
import { h } from './dom.js';
import { list } from './format.js';
import { skeleton } from './parts.js';

// Which options a dialog has: those in effect, but for those that have a dialog of their own.
const others = ['MAINTENANCE', 'READ_ONLY_ROUTING_LIST'];
const parts = { GROUP: 'options', REPLICA: 'options', SECONDARY_ROLE: 'secondary_role', PRIMARY_ROLE: 'primary_role' };
const titles = { SECONDARY_ROLE: 'While it is a secondary', PRIMARY_ROLE: 'While it is the primary' };

const keyOf = (o) => `${o.place}/${o.name}`;

/** openOptions opens the options of a replica or, without a name, of the group. */
export function openOptions(app, replica) {
  read(app, { kind: 'options', title: replica ? `Options of ${replica}` : 'Options of the group', replica: replica ?? null, changed: {} });
}

/** openRouting opens the list by which readers are routed while a replica is the primary. */
export function openRouting(app, replica) {
  read(app, { kind: 'routing', title: `Readers while ${replica} is the primary`, replica });
}

// read opens a dialog and reads the options with their values for it.
async function read(app, dialog) {
  const mine = Symbol('dialog');
  const set = (x) => app.dialog?.mine === mine && app.set({ dialog: { ...app.dialog, ...x } });
  app.set({ dialog: { ...dialog, mine, known: null } });
  try {
    const [list, view] = await Promise.all([api.options(), api.view('coterie.options')]);
    const known = list.filter((o) => (dialog.replica ? o.place !== 'GROUP' : o.place === 'GROUP'))
      .map((o) => ({ ...o, ...view.rows.find((r) => r.replica === dialog.replica && r.place === o.place && r.option === o.name) }));
    set({ known, ...routesOf(app, known.find((o) => o.name === 'READ_ONLY_ROUTING_LIST')) });
  } catch (e) {
    app.failed(e);
    set({ known: [], error: e instanceof Refused ? e.message : 'This node does not answer.' });
  }
}

const current = (o) => String(o.value ?? '');

/** optionsBody returns what the dialog of options shows. */
export function optionsBody(app, d, send, proof) {
  if (d.deed) return { content: outcome(app.deeds[d.deed]) };
  if (!d.known) return { content: skeleton(6) };
  const list = d.known.filter((o) => !others.includes(o.name));
  const changed = list.filter((o) => keyOf(o) in d.changed && d.changed[keyOf(o)] !== current(o));
  const change = (o, v) => app.set({ dialog: { ...app.dialog, changed: { ...app.dialog.changed, [keyOf(o)]: v.trim() } } });
  return {
    verb: changed.length === 0 ? 'Change' : `Change ${changed.length} ${changed.length === 1 ? 'option' : 'options'}`, blocked: changed.length === 0, wide: true,
    submit: (form) => {
      const body = d.replica ? { replica: d.replica } : {};
      for (const o of changed) (body[parts[o.place]] ??= {})[o.name] = d.changed[keyOf(o)];
      send('options', body, form);
    },
    content: [
      list.map((o, i) => [titles[o.place] && list[i - 1]?.place !== o.place && h('h3', { 'data-key': o.place }, titles[o.place]), field(o, d.changed[keyOf(o)] ?? current(o), (v) => change(o, v))]),
      h('p', { class: 'preview', role: 'status' }, changed.length ? ['Will be changed: ', h('code', null, changed.map((o) => `${o.name} = ${d.changed[keyOf(o)]}`).join(', '))] : 'Nothing is changed yet.'),
      d.proof && proof(),
    ],
  };
}

// field returns an option with its value, what it is, and what it may be.
function field(o, value, change) {
  const id = `o-${keyOf(o).replace('/', '-')}`;
  const range = o.form === 'number' ? `from ${o.min ?? 0} to ${o.max}${o.unit ? ` ${o.unit}` : ''}${o.words?.length ? `, or ${o.words.join(', ')}` : ''}; ` : '';
  const words = o.words?.includes(value) ? o.words : [value, ...(o.words ?? [])]; // one with a number, or none
  const same = { id, 'aria-describedby': `${id}-about` };
  return h('div', { class: 'option', 'data-key': `${id}-row` },
    h('label', { for: id }, h('b', null, o.name)),
    o.form === 'word' || o.form === 'codec' ? h('select', { ...same, onchange: (e) => change(e.target.value) }, words.map((w) => h('option', { value: w, selected: w === value }, w || '–')))
      : h('input', { ...same, value, maxlength: '40', autocomplete: 'off', spellcheck: 'false', inputmode: o.form === 'number' && !o.words?.length ? 'numeric' : null, placeholder: o.default, oninput: (e) => change(e.target.value) }),
    h('p', { id: `${id}-about`, class: 'quiet' }, o.about, ` (${range}${o.default ? `default: ${o.default}` : 'no default'}${o.is_set ? '; set now' : ''})`));
}

// routesOf reads a list as a statement has it: each replica gets its place, and those of a set have the same one.
function routesOf(app, o) {
  if (!o) return {};
  const names = (app.status?.replicas ?? []).filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY').map((r) => r.name);
  const text = o.is_set ? current(o) : '';
  const places = Object.fromEntries(names.map((n) => [n, '']));
  let depth = 0, place = 0;
  for (const m of text.matchAll(/[()]|N?'((?:[^']|'')*)'/g)) {
    if (m[0] === '(') {
      if (++depth === 2) place++;
    } else if (m[0] === ')') depth--;
    else {
      if (depth < 2) place++;
      const name = m[1].replaceAll("''", "'");
      if (name in places) places[name] = String(place);
    }
  }
  return { names, places, way: text === '' ? 'DEFAULT' : text === 'NONE' ? 'NONE' : 'list' };
}

const inTurn = (sets) => sets.map((s) => (s.length > 1 ? `${list(s)} in turn` : s[0])).join(', then ');

/** inOrder says where readers go by a replica's READ_ONLY_ROUTING_LIST, a row of coterie.options. */
export function inOrder(app, o) {
  const { names, places, way } = routesOf(app, o);
  if (!way || way === 'DEFAULT') return 'the secondaries in turn, then the primary';
  return way === 'NONE' ? 'the primary alone' : inTurn(names.map((_, i) => names.filter((n) => places[n] === String(i + 1))).filter((s) => s.length > 0)) || 'nobody that is a replica';
}

/** routingBody returns what the dialog of a routing list shows. */
export function routingBody(app, d, send, proof) {
  if (d.deed) return { content: outcome(app.deeds[d.deed]) };
  if (!d.known) return { content: skeleton(4) };
  if (!d.places) return { content: h('p', null, 'The list could not be read.') };
  const set = (x) => app.set({ dialog: { ...app.dialog, ...x } });
  const sets = d.names.map((_, i) => d.names.filter((n) => d.places[n] === String(i + 1))).filter((s) => s.length > 0);
  return {
    verb: 'Change', blocked: d.way === 'list' && sets.length === 0,
    submit: (form) => send('routing', { replica: d.replica, list: d.way === 'list' ? sets : d.way }, form),
    content: [
      h('label', { for: 'way', 'data-key': 'way-label' }, 'Readers go to'),
      h('select', { id: 'way', 'data-key': 'way', onchange: (e) => set({ way: e.target.value }) }, [['DEFAULT', 'the secondaries in turn, then the primary'], ['NONE', 'the primary alone'], ['list', 'replicas in an order']].map(([v, text]) => h('option', { value: v, selected: v === d.way }, text))),
      d.way === 'list' && d.names.map((n) => [
        h('label', { for: `place-${n}`, 'data-key': `place-${n}-label` }, n),
        h('select', { id: `place-${n}`, 'data-key': `place-${n}`, onchange: (e) => set({ places: { ...app.dialog.places, [n]: e.target.value } }) },
          ['', ...d.names.map((_, i) => String(i + 1))].map((v) => h('option', { value: v, selected: v === d.places[n] }, v === '' ? 'not in the list' : `place ${v}`))),
      ]),
      h('p', { class: 'preview', role: 'status' }, d.way !== 'list' ? '' : sets.length === 0 ? 'Give a replica a place.' : `First ${inTurn(sets)}.`),
      d.proof && proof(),
    ],
  };
}
