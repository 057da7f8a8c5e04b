import { api, Refused } from './api.js';
import { h } from './dom.js';
import { copy, course, findings, pagesOf, script, select, verdict } from './pages.js';
import { sign } from './parts.js';
import { timeOf } from './format.js';

// The pages of the wizard, in their order.
const pages = ['Choose', 'Validation', 'Summary', 'Join'];

/** openJoin opens the wizard by which a member is added. */
export function openJoin(app) {
  app.set({ dialog: { kind: 'join', title: 'Add a member', page: 0, form: { role: 'replica', name: '', mode: 'SYNCHRONOUS_COMMIT', failover: 'AUTOMATIC', readers: 'READ_ONLY', routing: '', minutes: '15' } } });
}

// newcomer returns the document of the member: only what is not so by itself.
function newcomer(f) {
  if (f.role === 'witness') return { name: f.name, role: 'witness' };
  const doc = { name: f.name, role: 'replica' };
  if (f.mode !== 'SYNCHRONOUS_COMMIT') doc.options = { AVAILABILITY_MODE: f.mode, FAILOVER_MODE: 'MANUAL' };
  else if (f.failover !== 'AUTOMATIC') doc.options = { FAILOVER_MODE: f.failover };
  if (f.readers !== 'READ_ONLY') doc.secondary_role = { ALLOW_CONNECTIONS: f.readers };
  if (f.routing) doc.primary_role = { READ_ONLY_ROUTING_LIST: f.routing };
  return doc;
}

/** joinBody returns what the page of the wizard shows. */
export function joinBody(app, d, proof) {
  const set = (x) => app.dialog?.kind === 'join' && app.set({ dialog: { ...app.dialog, ...x } });
  const turn = (page) => {
    set({ page, error: '', hint: '' });
    requestAnimationFrame(() => document.getElementById('dialog-title')?.focus());
  };
  const where = pagesOf(pages, d.page);
  const back = d.page > 0 && d.page < 3 ? () => turn(d.page - 1) : null;
  const body = [chosen, checked, summed, joining][d.page](app, d, set, turn, proof);
  return { back, ...body, content: [where, body.content] };
}

function chosen(app, d, set, turn) {
  const f = d.form;
  const change = (name) => (value) => set({ form: { ...app.dialog.form, [name]: value }, error: '' });
  return {
    verb: 'Next',
    submit: async () => {
      const { form } = app.dialog;
      set({ busy: true, error: '', hint: '', plan: null });
      try {
        const plan = await api.plan(newcomer(form));
        set({ busy: false, form, plan }); // what was checked is what joins, not what was typed meanwhile
        turn(1);
      } catch (e) {
        app.failed(e);
        set({ busy: false, error: e instanceof Refused ? e.message : 'This node does not answer.', hint: e.hint ?? '' });
      }
    },
    content: [
      select('kind', 'What joins', f.role, [['replica', 'a replica: a copy of the data'], ['witness', 'a witness: a vote without data']], change('role')),
      h('label', { for: 'name', 'data-key': 'name-label' }, 'Its name in the group'),
      h('input', { id: 'name', 'data-key': 'name', value: f.name, required: true, maxlength: '30', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', 'aria-describedby': 'name-about', oninput: (e) => change('name')(e.target.value) }),
      h('p', { id: 'name-about', 'data-key': 'name-about', class: 'quiet' }, 'a–z, 0–9 and _, beginning with a letter; for example n4'),
      f.role === 'replica' && [
        select('mode', 'Commits', f.mode, [['SYNCHRONOUS_COMMIT', 'wait for it (synchronous)'], ['ASYNCHRONOUS_COMMIT', 'do not wait for it (asynchronous)']], change('mode')),
        f.mode === 'SYNCHRONOUS_COMMIT' && select('failover', 'Failover to it', f.failover, [['AUTOMATIC', 'by itself, or planned'], ['MANUAL', 'only when somebody asks for it']], change('failover')),
        select('readers', 'Readers on it, while it is a secondary', f.readers, [['READ_ONLY', 'those that say that they only read'], ['ALL', 'everybody'], ['NO', 'none']], change('readers')),
        select('routing', 'While it is the primary, readers go to', f.routing, [['', 'the secondaries, in turn'], ['NONE', 'itself']], change('routing')),
      ],
    ],
  };
}

function checked(app, d, set, turn) {
  const found = d.plan?.findings ?? [];
  const bad = found.some((f) => f.level === 'PROBLEM');
  return {
    verb: bad ? null : 'Next', submit: () => turn(2),
    content: [
      verdict(found, 'Nothing stands in the way here. The new machine is checked when it joins.'),
      findings(found),
    ],
  };
}

function summed(app, d, set, turn, proof) {
  return {
    verb: 'Make the token', submit: (form) => make(app, form, set, turn),
    content: [
      h('p', null, `A token lets ${d.form.name} join. `, d.plan.statement ? 'Once it has joined, this page gives it its options by a statement. The same by hand:' : 'It begins with the options that you chose. The same by hand:'),
      script(app, d, d.plan.script),
      select('minutes', 'The token is valid for', d.form.minutes, [['15', '15 minutes'], ['60', 'an hour'], ['1440', 'a day']], (v) => set({ form: { ...app.dialog.form, minutes: v } })),
      h('p', { class: 'quiet' }, 'It works once. Its owner can join the group and gets a copy of all data: give it to nobody else.'),
      d.proof && proof(),
    ],
  };
}

async function make(app, form, set, turn) {
  const d = app.dialog, password = new FormData(form).get('proof');
  set({ busy: true, error: '', hint: '' });
  try {
    if (password || app.me.by_certificate && d.proof) await api.prove(password ?? '');
    const mine = Symbol('token');
    const token = await api.token(d.form.role, Number(d.form.minutes));
    set({ busy: false, token: { ...token, command: `${token.command} --name ${d.form.name}` }, mine });
    turn(3);
    attend(app, mine, set);
  } catch (e) {
    if (e.state !== '28P01') app.failed(e);
    if (e.state === '28000' && e.code === 403) return set({ busy: false, proof: true, error: d.proof ? e.message : '' });
    set({ busy: false, error: e instanceof Refused ? e.message : 'This node does not answer.', hint: e.hint ?? '' });
  }
}

const member = (app, d) => (app.status?.replicas ?? []).find((r) => r.name === d.form.name);

// attend waits for the member as long as the dialog is open, and gives it its options once it has joined.
async function attend(app, mine, set) {
  while (app.me && app.dialog?.mine === mine) {
    const d = app.dialog;
    if (d.plan.statement && !d.given && member(app, d)) {
      try {
        const { name, role, ...rest } = newcomer(d.form);
        const deed = await api.change('options', { replica: name, ...rest });
        app.deeds[deed.id] ??= deed;
        set({ given: deed.id });
      } catch (e) {
        app.failed(e);
        if (e instanceof Refused && e.code !== 503 && e.code !== 429) return set({ given: 'refused', error: e.message, hint: 'Run the statement by hand.', number: e.number });
      }
    }
    const deed = app.deeds[d.given];
    if (deed?.state === 'running') app.deeds[d.given] = await api.operation(d.given).catch(() => deed);
    await new Promise((done) => setTimeout(done, 1000));
  }
}

// The steps of the member, each with whether it is reached, and what is said about it now.
function stepsOf(app, d) {
  const r = member(app, d), witness = d.form.role === 'witness';
  const there = Boolean(r && r.connected_state === 'CONNECTED');
  const steps = [[`${d.form.name} has joined`, Boolean(r), 'waiting for the command on the new machine'], ['It answers', there, '']];
  if (d.plan.statement) steps.push(['It has its options', app.deeds[d.given]?.state === 'done', app.deeds[d.given]?.now ?? '']);
  if (witness) return steps;
  const sync = r?.synchronization_state ?? '';
  steps.push(['Its copy is made', there && ['SYNCHRONIZED', 'SYNCHRONIZING'].includes(sync) && !r.busy, r?.progress ?? '']);
  if (d.form.mode === 'SYNCHRONOUS_COMMIT') steps.push(['It is synchronized', there && sync === 'SYNCHRONIZED', r?.progress ?? '']);
  return steps;
}

function joining(app, d) {
  const t = d.token, witness = t.role === 'witness';
  const steps = stepsOf(app, d), over = steps.every(([, done]) => done);
  return {
    content: [
      h('p', null, `On the new machine, with Coterie${witness ? '' : ` and PostgreSQL ${(app.status?.postgresql ?? '').split('.')[0]}`} installed, until ${timeOf(t.expires)}:`),
      h('div', { class: 'row commands' }, h('code', null, t.command), h('button', { type: 'button', class: 'act', 'aria-label': 'Copy the command', onclick: () => copy(app, t.command) }, d.copied === t.command ? 'Copied' : 'Copy')),
      h('p', { class: 'quiet' }, 'The token is shown this once.', d.plan.statement && app.deeds[d.given]?.state !== 'done' && ' Leave this open until the member has its options, or run the statement yourself.'),
      course(steps),
      h('p', { class: `outcome ${over ? 'good' : ''}`, role: 'status' }, over && [sign('good'), h('span', null, `${d.form.name} is ${witness ? 'a witness' : 'a replica'} of the group.`)]),
      d.given === 'refused' && h('pre', { class: 'script', tabindex: '0', 'aria-label': 'Statement' }, `${d.plan.statement};`),
    ],
  };
}
