import { dialog, underWay } from './actions.js';
import { api, follow, Refused } from './api.js';
import { history, lookAtHistory } from './charts.js';
import { h, show } from './dom.js';
import { arrived, arrivedBanner, lookElsewhere, lostBanner } from './elsewhere.js';
import { overview } from './overview.js';
import { sign } from './parts.js';
import { databases, events, members, replicas } from './screens.js';
import { copiesView, running } from './seedings.js';
import { sessions } from './sessions.js';
import { settings } from './settings.js';
import { sql } from './sql.js';
import { weekView } from './week.js';

// The screens, with the views that each one looks at while it is open.
const screens = {
  '': { label: 'Overview', draw: overview, views: ['coterie.replicas', 'coterie.streams'], look: (app) => copying(app) && read(copiesView) },
  replicas: { label: 'Replicas', draw: replicas, views: ['coterie.replicas', 'coterie.streams', 'coterie.policies', copiesView] },
  databases: { label: 'Databases', draw: databases, views: ['sys.dm_hadr_database_replica_states', 'sys.dm_hadr_database_replica_cluster_states', 'sys.availability_replicas', 'coterie.databases'] },
  sessions: { label: 'Sessions', draw: sessions, views: ['coterie.sessions', 'coterie.continuity', 'coterie.routed', 'coterie.routes', 'coterie.options', weekView] },
  charts: { label: 'Charts', draw: history, views: [], look: lookAtHistory },
  events: { label: 'Events', draw: events, views: [] },
  settings: { label: 'Settings', draw: settings, views: ['coterie.settings', 'coterie.parameters'] },
  members: { label: 'Members', draw: members, views: ['sys.dm_hadr_cluster_members', 'coterie.certificates'] },
  sql: { label: 'SQL', draw: sql, views: [] },
};

const lookEvery = 2000; // between two looks at the views of a screen
const slowly = { 'coterie.sessions': 5000, 'coterie.options': 10000, 'coterie.settings': 10000, 'coterie.parameters': 5000, 'coterie.certificates': 10000, [weekView]: 60000 }; // those that are large, or change seldom
const staleAfter = 12000; // the node sends its status at least every four seconds

// copying reports whether a copy is under way, by the status or by what was seen last.
const copying = (app) => running(app).length > 0 || app.status?.replicas?.some((r) => r.synchronization_state === 'INITIALIZING');

const app = {
  me: undefined, // undefined: not known yet; null: not logged in
  status: null,
  events: [],
  views: {},
  seen: {}, // when each view was read last
  refused: {}, // why each cannot be read
  from: arrived(),
  away: null,
  deeds: {}, // changes by their ids
  dialog: null,
  heard: 0,
  lost: false,
  sql: {},
  error: '',
  rows: (name) => app.views[name],
  set(change) {
    Object.assign(app, change);
    draw();
  },
  failed(e) {
    if (e instanceof Refused && e.code === 401) leave('Your session has ended. Log in again.');
  },
};

const nothing = { end: () => {}, renew: () => {} };
let stream = nothing;
let pending = false;

function draw() {
  if (pending) return;
  pending = true;
  // A page in the background draws nothing; a timer draws it where animation frames are held back.
  (document.hidden ? (f) => setTimeout(f, 500) : requestAnimationFrame)(() => {
    pending = false;
    show(document.getElementById('app'), app.me === undefined ? starting() : app.me === null ? door() : [frame(), dialog(app)]);
    document.title = title();
  });
}

const groupName = (st) => (st?.draft ? 'No group yet' : st?.group ?? 'Coterie');

function title() {
  const a = app.status?.availability;
  if (!app.me || !a) return 'Coterie';
  return `${a.level === 'healthy' ? '' : a.level === 'down' ? '✕ ' : '! '}${groupName(app.status)} · Coterie`;
}

const screen = () => {
  const path = location.hash.replace(/^#\/?/, '').split('?')[0];
  return screens[Object.hasOwn(screens, path) ? path : ''];
};

const starting = () => h('p', { class: 'blank', 'data-key': 'start' }, app.lost ? 'This node does not answer. Trying again…' : 'Connecting…');

function door() {
  const submit = async (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    app.set({ busy: true, error: '' });
    try {
      enter(await api.logIn(form.get('user'), form.get('password') ?? ''));
    } catch (err) {
      app.set({ busy: false, error: err instanceof Refused ? err.message + (err.hint ? ` ${err.hint}` : '') : 'This node does not answer.' });
    }
  };
  return h('main', { class: 'door', 'data-key': 'door' }, h('form', { class: 'card', method: 'post', onsubmit: submit },
    h('h1', null, mark(), 'Coterie'),
    app.from && h('p', { class: 'outcome warn', role: 'status' }, sign('warn'), h('span', null, `${app.from.node} did not answer. Log in here to go on where you were.`)),
    h('p', { class: 'quiet' }, h('b', null, location.host), api.byCertificate
      ? ' is a witness. It shows the group and changes nothing. Log in with the name in your client certificate; no password is asked for here.'
      : ': log in with a role of PostgreSQL that has coterie_viewer, and its password.'),
    h('label', { for: 'user' }, 'User'), h('input', { id: 'user', name: 'user', autocomplete: 'username', required: true, maxlength: '63', autofocus: !app.from, value: app.from?.as }),
    !api.byCertificate && h('label', { for: 'password' }, 'Password'), !api.byCertificate && h('input', { id: 'password', name: 'password', type: 'password', autocomplete: 'current-password', maxlength: '1024', autofocus: Boolean(app.from) }),
    h('p', { class: 'error', role: 'alert' }, app.error),
    h('button', { class: 'main', type: 'submit', disabled: app.busy }, app.busy ? 'Checking…' : 'Log in')));
}

const mark = () => h('img', { src: '/icon.svg', alt: '', width: '22', height: '22' });

function frame() {
  const now = screen();
  const st = app.status;
  const old = st && Date.now() - app.heard > staleAfter;
  app.old = Boolean(app.lost || old); // what is shown is of the past
  return h('div', { class: `frame${app.old ? ' old' : ''}`, 'data-key': 'frame' },
    h('a', { class: 'skip', href: '#content', onclick: (e) => { e.preventDefault(); document.getElementById('content').focus(); } }, 'Skip to content'),
    h('header', { class: 'top' },
      h('a', { class: 'brand', href: '#/' }, mark(), h('b', null, groupName(st)), st?.postgresql && h('span', { class: 'quiet' }, ` PostgreSQL ${st.postgresql}`)),
      h('nav', { 'aria-label': 'screens' }, Object.entries(screens).map(([path, x]) => h('a', { href: `#/${path}`, 'aria-current': x === now ? 'page' : null }, x.label, x === screens[''] && badge(st)))),
      h('div', { class: 'who' }, live(old),
        h('button', { type: 'button', class: 'ghost', onclick: theme, title: 'light or dark', 'aria-label': 'change between light and dark' }, '◐'),
        h('button', { type: 'button', class: 'ghost', onclick: logOut }, 'Log out'))),
    app.old && lostBanner(app),
    !app.old && arrivedBanner(app),
    underWay(app),
    h('main', { id: 'content', tabindex: '-1', 'data-screen': now.label }, h('h1', { class: 'hidden' }, now.label), now.draw(app)));
}

function badge(st) {
  const n = st?.availability.problems?.length;
  return n ? h('span', { class: 'count' }, n, h('span', { class: 'hidden' }, n === 1 ? ' problem' : ' problems')) : null;
}

function live(old) {
  const tone = app.lost ? 'bad' : old || !app.status ? 'warn' : 'good';
  return h('span', { class: `live ${tone}`, role: 'status', title: `${app.me.user} on ${app.me.node}` }, sign(tone), app.lost ? 'disconnected' : old ? 'stale' : app.status ? 'live' : 'waiting', h('span', { class: 'quiet node' }, ` ${app.me.node}`));
}

function theme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === 'dark';
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  localStorage.setItem('theme', document.documentElement.dataset.theme);
}

async function logOut() {
  await api.logOut().catch(() => {});
  leave('');
}

function leave(error) {
  stream.end();
  stream = nothing;
  app.set({ me: null, status: null, events: [], views: {}, seen: {}, refused: {}, away: null, deeds: {}, dialog: null, sql: {}, past: null, traffic: null, pointed: null, lost: false, busy: false, error });
}

function enter(me) {
  stream.end();
  app.set({ me, busy: false, error: '', lost: false, heard: Date.now() });
  stream = follow((kind, doc) => {
    if (kind === 'ended') return leave('Your session has ended. Log in again.');
    if (kind === 'lost') return app.lost || app.set({ lost: true });
    if (app.lost) look();
    app.lost = false;
    app.heard = Date.now();
    if (kind === 'reset') app.events = [];
    if (kind === 'event') insert(doc);
    if (kind === 'operation') heardOf(doc);
    if (kind === 'status') {
      if (doc.epoch !== app.status?.epoch || doc.write_open !== app.status?.write_open) look();
      app.status = doc;
    }
    draw();
  });
  look();
}

// Changes are told of again and again until they have ended; the latest fifty are kept.
function heardOf(doc) {
  delete app.deeds[doc.id];
  app.deeds[doc.id] = doc;
  const ids = Object.keys(app.deeds);
  if (ids.length > 50) delete app.deeds[ids[0]];
  if (doc.state !== 'running') look();
}

// Events arrive in the order in which the node hears of them; they are shown by their time.
function insert(e) {
  let i = app.events.length;
  while (i > 0 && app.events[i - 1].at > e.at) i--;
  app.events.splice(i, 0, e);
  if (app.events.length > 3000) app.events.shift();
}

async function read(name) {
  if (app.views[name] && Date.now() - app.seen[name] < (slowly[name] ?? 0)) return;
  try {
    app.views[name] = name === copiesView ? await api.seedings() : (await api.view(name)).rows;
    app.seen[name] = Date.now();
    delete app.refused[name];
  } catch (e) {
    app.refused[name] = e instanceof Refused ? e.message : 'it does not answer';
    throw e;
  }
}

let looking = false;

async function look() {
  if (looking || !app.me || document.hidden) return;
  looking = true;
  const now = screen();
  await Promise.all([...now.views.map((name) => () => read(name)), () => now.look?.(app)].map(async (ask) => {
    try {
      await ask();
    } catch (e) {
      app.failed(e);
    }
  }));
  looking = false;
  if (app.me) draw();
}

// byCertificate logs somebody in who comes from a page where a certificate did; null where it does not do so here.
async function byCertificate() {
  if (!app.from?.certificate) return null;
  return api.logIn(app.from.as, '').catch((e) => {
    if (e instanceof Refused) return null;
    throw e;
  });
}

async function start() {
  try {
    const me = await api.session() ?? await byCertificate();
    if (me) enter(me);
    else app.set({ me: null });
  } catch {
    app.set({ lost: true });
    setTimeout(start, 1000);
  }
}

const kept = localStorage.getItem('theme');
if (kept === 'dark' || kept === 'light') document.documentElement.dataset.theme = kept;
addEventListener('hashchange', () => {
  draw();
  look();
  scrollTo(0, 0);
});
addEventListener('visibilitychange', look);
addEventListener('resize', draw);
setInterval(look, lookEvery);
setInterval(() => {
  lookElsewhere(app, () => stream.renew());
  if (app.me) draw(); // ages grow
}, 1000);
draw();
start();
