import { api, Refused } from './api.js';
import { outcome, proof, typed } from './change.js';
import { h } from './dom.js';
import { consoles } from './elsewhere.js';
import { failoverBody, openFailover } from './failover.js';
import { foundingBody, openFounding } from './founding.js';
import { joinBody, openJoin } from './join.js';
import { openOptions, openRouting, optionsBody, routingBody } from './options.js';
import { sign } from './parts.js';
import { settingBody } from './settings.js';

// The privileges, each with those before it. The node judges; the page only says beforehand which role is needed.
const ranks = ['coterie_viewer', 'coterie_operator', 'coterie_admin', 'superuser'];

const may = (app, role) => !app.me?.looks_only && ranks.indexOf(app.me?.role) >= ranks.indexOf(role);

/** needsRole says which roles changes need, where this session's has not all of them. */
export function needsRole(app) {
  if (may(app, 'coterie_admin')) return null;
  if (app.me?.looks_only) return h('span', { class: 'quiet' }, 'a witness changes nothing: use the console of a replica');
  return h('span', { class: 'quiet' }, may(app, 'coterie_operator') ? 'maintenance, options and removal need coterie_admin' : 'changes need coterie_operator or coterie_admin');
}

const lack = (app, needs) => (app.me?.looks_only ? 'not on a witness' : `needs the role ${needs}`);

/** actionButton is a button that acts, or that says which role is needed for it. */
export function actionButton(app, needs, label, name, act, tone = '') {
  const allowed = may(app, needs);
  const about = `${label.replace('…', '')}${name ? ` ${name}` : ''}`;
  return h('button', {
    type: 'button', class: `act ${tone}${allowed ? '' : ' locked'}`, 'aria-label': allowed ? about : `${about}: ${lack(app, needs)}`, title: allowed ? null : lack(app, needs),
    disabled: app.old, onclick: () => (allowed ? act() : app.set({ dialog: { kind: 'role', needs, title: about } })),
  }, label);
}

/** failoverButton opens the dialog of a failover, to a replica or to one that is chosen there. */
export const failoverButton = (app, to, label) => actionButton(app, 'coterie_operator', label, to ? `to ${to}` : '', () => openFailover(app, to));

/** routingButton opens the list by which readers are routed while a replica is the primary. */
export const routingButton = (app, name) => actionButton(app, 'coterie_admin', 'Routing…', `while ${name} is the primary`, () => openRouting(app, name));

const ask = (app, dialog) => () => app.set({ dialog: { kind: 'plain', ...dialog } });

/** actionsOf returns the buttons of a member. */
export function actionsOf(app, r) {
  const name = r.name;
  if (r.availability_mode === 'CONFIGURATION_ONLY') return h('span', { class: 'quiet' }, 'a witness has no copy to act on');
  if (r.join_state === 'NOT_JOINED') return actionButton(app, 'coterie_admin', 'Join…', name, ask(app, { title: `${name} joins the group`, text: `${name} was added to the group, and has no copy of it yet. It gets one now.`, change: 'join', body: { replica: name }, verb: 'Join' }));
  if (r.join_state === 'DETACHED') return h('span', { class: 'quiet' }, 'a node without a part in the group');
  const settings = [
    actionButton(app, 'coterie_admin', 'Options…', `of ${name}`, () => openOptions(app, name)),
    routingButton(app, name),
  ];
  if (name === app.status.primary) return [settings, h('span', { class: 'quiet' }, 'the primary: fail over to another replica first')];
  return [
    failoverButton(app, name, 'Fail over…'),
    r.suspended
      ? actionButton(app, 'coterie_operator', 'Resume…', name, ask(app, { title: `Resume ${name}`, text: `${name} receives WAL again, and counts for commits once it has caught up.`, change: 'resume', body: { replica: name }, verb: 'Resume' }))
      : actionButton(app, 'coterie_operator', 'Suspend…', name, ask(app, { title: `Suspend ${name}`, text: `${name} receives nothing until it is resumed, and no commit waits for it. Its copy grows old: it takes no readers.`, change: 'suspend', body: { replica: name }, verb: 'Suspend' })),
    r.maintenance
      ? actionButton(app, 'coterie_admin', 'End maintenance…', `of ${name}`, ask(app, { title: `End the maintenance of ${name}`, text: `${name} takes readers again and may take over.`, change: 'maintenance', body: { replica: name, on: false }, verb: 'End maintenance' }))
      : actionButton(app, 'coterie_admin', 'Maintenance…', `of ${name}`, ask(app, { title: `Maintenance of ${name}`, text: `${name} takes no readers and does not take over. It keeps its vote, and commits may wait for it.`, change: 'maintenance', body: { replica: name, on: true }, verb: 'Begin maintenance', fields: 'maintenance' })),
    actionButton(app, 'coterie_operator', 'Seed…', name, ask(app, { title: `Make the copy of ${name} anew`, text: `Every byte of ${name} is compared with the source, and what differs is fetched. ${name} takes no readers and cannot take over until that has ended.`, change: 'seed', body: { replica: name }, verb: 'Seed' })),
    settings,
    actionButton(app, 'coterie_admin', 'Remove…', name, ask(app, { title: `Remove ${name} from the group`, text: `${name} is no copy of the group any more. Its node stays joined, and its data stays on its disk.`, change: 'remove', body: { replica: name }, verb: 'Remove', type: name, tone: 'danger' }), 'risky'),
  ];
}

/** groupActions returns the buttons of the group. */
export function groupActions(app) {
  return [maintenanceOfGroup(app), actionButton(app, 'coterie_admin', 'Options…', 'of the group', () => openOptions(app))];
}

function maintenanceOfGroup(app) {
  return app.status.maintenance
    ? actionButton(app, 'coterie_admin', 'End maintenance…', 'of the group', ask(app, { title: 'End the maintenance of the group', text: 'Automatic failovers may begin again.', change: 'maintenance', body: { on: false }, verb: 'End maintenance' }))
    : actionButton(app, 'coterie_admin', 'Maintenance…', 'of the group', ask(app, { title: 'Maintenance of the group', text: 'No automatic failover begins while it is on. Planned and forced ones happen.', change: 'maintenance', body: { on: true }, verb: 'Begin maintenance', fields: 'maintenance' }));
}

/** joinButton opens the dialog that makes a join token. */
export const joinButton = (app) => actionButton(app, 'coterie_admin', 'Add a member…', '', () => openJoin(app));

/** foundingButton opens the wizard that makes a group. */
export const foundingButton = (app) => actionButton(app, 'coterie_admin', 'New group…', '', () => openFounding(app), 'lead');

/** underWay tells of the changes that are under way, whoever asked for them. */
export function underWay(app) {
  const running = Object.values(app.deeds).filter((d) => d.state === 'running' && d.id !== app.dialog?.deed);
  if (running.length === 0) return null;
  return h('div', { class: 'banner going', role: 'status', 'data-key': 'going' }, h('i', { class: 'spin' }), h('p', null, running.map((d) => h('span', { 'data-key': d.id }, h('b', null, d.user), ': ', h('code', null, d.statement), d.now && h('span', { class: 'quiet' }, ` ${d.now}`)))));
}

/** dialog draws the open dialog, which keeps the focus to itself until it is closed. */
export function dialog(app) {
  const d = app.dialog;
  if (!d) return null;
  const close = () => app.set({ dialog: null });
  const leave = () => document.querySelector('dialog')?.close();
  const ask = (...x) => send(app, ...x);
  const bodies = { role: () => roleBody(app, d), failover: () => failoverBody(app, d, ask, () => proof(app)), founding: () => foundingBody(app, d), join: () => joinBody(app, d, () => proof(app)), options: () => optionsBody(app, d, ask, () => proof(app)), routing: () => routingBody(app, d, ask, () => proof(app)), setting: () => settingBody(app, d) };
  const body = (bodies[d.kind] ?? (() => plainBody(app, d)))();
  return h('dialog', { 'data-key': 'dialog', class: body.wide ? 'broad' : null, 'aria-labelledby': 'dialog-title', onclose: close, mounted: (el) => el.showModal() },
    h('form', { method: 'dialog', onsubmit: (e) => { e.preventDefault(); body.submit?.(e.target); } },
      h('h2', { id: 'dialog-title', tabindex: '-1' }, d.title),
      body.content,
      h('p', { class: 'error', role: 'alert' }, d.error ? [sign('bad'), ' ', d.number ? `Msg ${d.number}: ` : '', d.error, d.hint && h('span', { class: 'quiet' }, ` ${d.hint}`)] : ''),
      h('div', { class: 'buttons' },
        h('button', { type: 'button', class: 'act', onclick: leave }, body.leave ?? (body.verb || body.back ? 'Cancel' : 'Close')),
        body.back && h('button', { type: 'button', class: 'act', 'data-key': 'back', onclick: body.back }, 'Back'),
        body.verb && h('button', { type: 'submit', class: `main ${body.tone ?? ''}`, disabled: d.busy || body.blocked }, d.busy ? 'Asking…' : body.verb))));
}

function roleBody(app, d) {
  if (app.me.looks_only) return { content: [h('p', null, h('b', null, app.me.node), ' is a witness, on which nothing is changed.'), h('p', { class: 'quiet' }, 'Open the console of a replica: ', consoles(app))] };
  return {
    content: [
      h('p', null, 'This needs the role ', h('code', null, d.needs), `. You are ${app.me.user}, ${app.me.role}.`),
      h('p', { class: 'quiet' }, 'An administrator gives it to you in any database but coterie, and it counts at once:'),
      h('p', null, h('code', null, `GRANT ${d.needs} TO "${app.me.user.replaceAll('"', '""')}"`)),
    ],
  };
}

function plainBody(app, d) {
  if (d.deed) return { content: outcome(app.deeds[d.deed]) };
  return {
    verb: d.verb, tone: d.tone, blocked: d.type && d.typed !== d.type,
    submit: (form) => send(app, d.change, { ...d.body, ...(d.type ? { confirm: d.typed } : {}), ...fieldsOf(d, form) }, form),
    content: [h('p', null, d.text), d.fields === 'maintenance' && maintenance(), d.type && typed(app, d), d.proof && proof(app)],
  };
}

const maintenance = () => [
  h('label', { for: 'reason' }, 'Reason'), h('input', { id: 'reason', name: 'reason', maxlength: '200', autocomplete: 'off' }),
  h('label', { for: 'span' }, 'Until'),
  h('select', { id: 'span', name: 'span' }, [['', 'it is switched off'], ['30', 'in 30 minutes'], ['120', 'in 2 hours'], ['480', 'in 8 hours']].map(([v, text]) => h('option', { value: v }, text))),
];

function fieldsOf(d, form) {
  if (d.fields !== 'maintenance') return {};
  const f = new FormData(form), out = {};
  if (f.get('reason')) out.reason = f.get('reason');
  if (f.get('span')) out.until = new Date(Date.now() + f.get('span') * 60000).toISOString();
  return out;
}

// send asks for a change, after the password where it is asked for, and follows it.
async function send(app, change, body, form) {
  const set = (x) => app.dialog && app.set({ dialog: { ...app.dialog, ...x } });
  set({ busy: true, error: '' });
  try {
    const password = form && new FormData(form).get('proof');
    if (password || app.me.by_certificate && app.dialog?.proof) await api.prove(password ?? '');
    const deed = await api.change(change, body);
    app.deeds[deed.id] ??= deed;
    set({ busy: false, deed: deed.id });
    document.getElementById('dialog-title')?.focus();
    watch(app, deed.id);
  } catch (e) {
    app.failed(e.state === '28P01' ? null : e);
    const known = e instanceof Refused;
    if (known && e.state === '28000') return set({ busy: false, proof: true, error: app.dialog?.proof ? e.message : '' });
    set({ busy: false, error: known ? e.message : 'This node does not answer. It may have begun all the same: look at the audit.', hint: known ? e.hint : '', number: known ? e.number : 0 });
  }
}

// watch asks about a change whose end the stream may not have told of.
async function watch(app, id) {
  while (app.me && app.deeds[id]?.state === 'running') {
    await new Promise((done) => setTimeout(done, 2000));
    if (app.deeds[id]?.state !== 'running') return;
    try {
      app.deeds[id] = await api.operation(id);
      app.set({});
    } catch (e) {
      if (e instanceof Refused) return;
    }
  }
}
