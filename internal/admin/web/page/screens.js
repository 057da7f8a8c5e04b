import { actionsOf, foundingButton, groupActions, joinButton, needsRole } from './actions.js';
import { grid } from './columns.js';
import { h } from './dom.js';
import { placed } from './elsewhere.js';
import { ago, between, bytes, dayOf, seconds, timeOf, words } from './format.js';
import { aged, card, lacking, role, state, table, toneOfSync } from './parts.js';
import { remembered, underWayCopies } from './seedings.js';

// replicaRows joins what the views know of each replica.
const replicaRows = (app) => app.rows('coterie.replicas')?.map((r) => {
  const stream = app.rows('coterie.streams')?.find((t) => t.member === r.name);
  return { ...r, stream, redo: stream ? between(stream.replayed, stream.flushed) : null };
});

const witness = (r) => r.availability_mode === 'CONFIGURATION_ONLY';
const dash = () => h('span', { class: 'quiet' }, '–');
// ofSecondary draws what only a secondary has.
const ofSecondary = (f) => (r) => (r.role === 'PRIMARY' || witness(r) ? dash() : f(r));
const yesNo = (v) => (v === null || v === undefined ? dash() : v ? 'yes' : 'no');

const replicaColumns = (app) => [
  { id: 'name', label: 'Name', cell: (r) => [r.name, r.name === app.me?.node && h('span', { class: 'quiet' }, ' this node')] },
  { id: 'role', label: 'Role', cell: (r) => role(witness(r) ? 'witness' : r.role) },
  { id: 'state', label: 'State', cell: (r) => (witness(r) ? state(r.connected ? 'good' : 'bad', r.connected ? (r.voter ? 'votes' : 'has no vote') : 'does not answer') : state(r.connected ? toneOfSync(r) : 'bad', r.connected ? words(r.synchronization_state) : 'does not answer')) },
  { id: 'mode', label: 'Mode', wide: true, cell: (r) => [words(r.availability_mode).replace(' commit', ''), h('span', { class: 'quiet' }, ` · ${words(r.failover_mode)}`)] },
  { id: 'behind', label: 'Not received', right: true, title: 'WAL that the replica has not flushed yet (send queue)', cell: ofSecondary((r) => bytes(r.behind_bytes)) },
  { id: 'redo', label: 'Not replayed', right: true, title: 'WAL that it has and has not replayed yet (redo queue)', cell: ofSecondary((r) => bytes(r.redo)) },
  { id: 'loss', label: 'Loss', right: true, title: 'estimated loss of data if it had to take over now', cell: ofSecondary((r) => seconds(r.estimated_data_loss)) },
  { id: 'recovery', label: 'Recovery', right: true, wide: true, title: 'estimated time until its queue is replayed', cell: ofSecondary((r) => seconds(r.estimated_recovery)) },
  { id: 'position', label: 'Position', class: 'mono', wide: true, more: true, cell: (r) => r.position ?? dash() },
  { id: 'link', label: 'Link', wide: true, more: true, cell: (r) => (r.stream?.transport ? [r.stream.transport, r.stream.codec && r.stream.codec !== 'OFF' && `, ${r.stream.codec.toLowerCase()}`, h('span', { class: 'quiet' }, ` ${(r.stream.round_trip_ms ?? 0).toFixed(2)} ms`)] : dash()) },
  { id: 'health', label: 'Health', off: true, more: true, cell: (r) => state({ HEALTHY: 'good', PARTIALLY_HEALTHY: 'warn' }[r.health] ?? 'bad', words(r.health)) },
  { id: 'ready', label: 'Failover ready', off: true, more: true, title: 'whether a failover to it would lose no acknowledged commit', cell: (r) => (witness(r) ? dash() : yesNo(r.failover_ready)) },
  { id: 'replayed', label: 'Replayed', class: 'mono', off: true, more: true, cell: (r) => r.replayed ?? dash() },
  { id: 'by-rate', label: 'Loss by rate', right: true, off: true, more: true, title: 'the same by the rate at which the primary writes', cell: ofSecondary((r) => seconds(r.estimated_data_loss_by_rate)) },
  { id: 'rate', label: 'Rate', right: true, off: true, more: true, title: 'of WAL sent to it', cell: ofSecondary((r) => (r.stream ? `${bytes(r.stream.rate)}/s` : dash())) },
  { id: 'silent', label: 'Silent for', right: true, off: true, more: true, cell: ofSecondary((r) => seconds(r.stream?.silent_seconds)) },
  { id: 'join', label: 'Joined', off: true, more: true, cell: (r) => words(r.join_state) },
  { id: 'vote', label: 'Vote', off: true, more: true, cell: (r) => yesNo(r.voter) },
  { id: 'maintenance', label: 'Maintenance', off: true, more: true, cell: (r) => r.maintenance ?? dash() },
  { id: 'listener', label: 'Clients', class: 'mono', off: true, more: true, cell: (r) => r.listener ?? dash() },
  { id: 'now', label: 'Now', class: 'now', cell: (r) => r.progress ?? r.because ?? '' },
];

const noReplicas = 'The group has no replicas yet.';

/** replicaTable shows the replicas on the first screen. */
export const replicaTable = (app) => table('Replicas', replicaColumns(app).filter((c) => !c.more), replicaRows(app), noReplicas, lacking(app, 'coterie.replicas'));

// none says in place of a screen that there is no group yet.
const none = (app, title) => card(title, null, h('p', { class: 'blank' }, 'There is no availability group yet.'), h('p', { class: 'row' }, foundingButton(app)));

export function replicas(app) {
  const st = app.status;
  if (st?.draft) return none(app, 'Replicas');
  const g = grid(app, 'replicas', 'Replicas', replicaColumns(app), replicaRows(app), noReplicas, lacking(app, 'coterie.replicas'));
  return [
    card('Replicas', [aged(app, 'coterie.replicas', 'coterie.streams'), h('span', { class: 'quiet' }, st ? `commits wait for ${st.commits_wait_for || 'nobody'}` : ''), g.chooser], g.table),
    underWayCopies(app),
    card('Actions', needsRole(app), h('ul', { class: 'actions' }, (st?.replicas ?? []).map((r) => h('li', { 'data-key': r.name }, h('b', null, r.name), role(r.availability_mode === 'CONFIGURATION_ONLY' ? 'witness' : r.role), h('div', { class: 'row' }, actionsOf(app, r)))),
      h('li', { 'data-key': '' }, h('b', null, 'group'), h('span', { class: 'quiet' }, st?.maintenance ? 'under maintenance' : ''), h('div', { class: 'row' }, st && groupActions(app))))),
    remembered(app),
    card('Health policies', aged(app, 'coterie.policies'), policies(app)),
  ];
}

function policies(app) {
  const rows = app.rows('coterie.policies');
  const bad = rows?.filter((r) => r.ok === false).map((r, i) => ({ ...r, $key: String(i) }));
  if (rows && bad.length === 0) return h('p', { class: 'blank' }, state('good', `All ${rows.length} checks of the fourteen policies hold.`));
  return table('Policies that fail', [
    { label: 'Policy', cell: (r) => r.policy },
    { label: 'Severity', cell: (r) => state(r.severity === 'Critical' ? 'bad' : 'warn', r.severity) },
    { label: 'Target', cell: (r) => r.target },
    { label: 'Finding', class: 'now', cell: (r) => r.finding },
  ], bad, '', lacking(app, 'coterie.policies'));
}

const copyStates = 'sys.dm_hadr_database_replica_states';

export function databases(app) {
  const states = app.rows(copyStates);
  const cluster = app.rows('sys.dm_hadr_database_replica_cluster_states');
  const names = new Map(app.rows('sys.availability_replicas')?.map((r) => [r.replica_id, r.replica_server_name]));
  const dbs = new Map(app.rows('coterie.databases')?.map((d) => [d.database_id, d]));
  const rows = states?.map((r) => {
    const c = cluster?.find((x) => x.replica_id === r.replica_id && x.group_database_id === r.group_database_id);
    return { ...r, $key: `${r.database_id}/${r.replica_id}`, name: dbs.get(r.database_id)?.name ?? c?.database_name ?? String(r.database_id), replica: names.get(r.replica_id) ?? '…', ready: c?.is_failover_ready };
  }).sort((a, b) => a.name.localeCompare(b.name) || a.replica.localeCompare(b.replica));
  const queue = (r, of) => (r.is_primary_replica ? dash() : kb(r[of]));
  const moment = (at) => (at ? h('time', { datetime: at, title: at }, timeOf(at)) : dash());
  const g = grid(app, 'databases', 'Databases', [
    { id: 'database', label: 'Database', cell: (r) => r.name },
    { id: 'replica', label: 'Replica', cell: (r) => [r.replica, r.is_primary_replica && h('span', { class: 'quiet' }, ' primary')] },
    { id: 'state', label: 'State', cell: (r) => state(toneOfSync({ synchronization_state: r.synchronization_state_desc, availability_mode: r.is_commit_participant ? '' : 'ASYNCHRONOUS_COMMIT' }), r.is_suspended ? 'suspended' : words(r.synchronization_state_desc)) },
    { id: 'failover', label: 'Failover', cell: (r) => (r.ready === undefined || r.ready === null ? dash() : r.ready ? 'no data loss' : 'data loss') },
    { id: 'send', label: 'Send queue', right: true, cell: (r) => queue(r, 'log_send_queue_size') },
    { id: 'redo', label: 'Redo queue', right: true, cell: (r) => queue(r, 'redo_queue_size') },
    { id: 'redo-rate', label: 'Redo rate', right: true, wide: true, cell: (r) => (r.redo_rate === null ? dash() : `${kb(r.redo_rate)}/s`) },
    { id: 'commit', label: 'Last commit', right: true, wide: true, cell: (r) => moment(r.last_commit_time) },
    { id: 'health', label: 'Health', off: true, cell: (r) => words(r.synchronization_health_desc) },
    { id: 'lag', label: 'Lag', right: true, off: true, title: 'of the last commit that was replayed', cell: (r) => (r.is_primary_replica ? dash() : seconds(r.secondary_lag_seconds)) },
    { id: 'unhardened', label: 'Not received', right: true, off: true, cell: (r) => queue(r, 'unhardened_queue_size') },
    { id: 'send-rate', label: 'Send rate', right: true, off: true, cell: (r) => (r.log_send_rate === null ? dash() : `${kb(r.log_send_rate)}/s`) },
    { id: 'hardened', label: 'Hardened', right: true, off: true, title: 'when it last reported durable WAL', cell: (r) => moment(r.last_hardened_time) },
    { id: 'replayed', label: 'Replayed', right: true, off: true, title: 'time of the commit that was replayed last', cell: (r) => moment(r.last_redone_time) },
    { id: 'suspended', label: 'Suspended by', off: true, cell: (r) => words(r.suspend_reason_desc) },
    { id: 'instance', label: 'Instance', off: true, cell: (r) => words(r.database_state_desc) },
  ], rows, 'The group has no database yet.', lacking(app, copyStates));
  return card('Databases', [aged(app, copyStates), h('span', { class: 'quiet' }, 'a copy is a whole server: its databases fail over together'), g.chooser], g.table);
}

const kb = (n) => (n === null || n === undefined ? '–' : bytes(n * 1024));

const kinds = { leadership: 'Leadership', commits: 'Commits', copy: 'Copies', health: 'Health', link: 'Links', statement: 'Statements' };

export function events(app) {
  const chosen = app.filter ?? '';
  const shown = app.events.filter((e) => !chosen || e.kind === chosen).slice(-400).reverse();
  const count = (k) => app.events.filter((e) => !k || e.kind === k).length;
  let lastDay = '';
  return card('Events', h('span', { class: 'quiet' }, 'by each node’s own clock'),
    h('div', { class: 'chips', role: 'group', 'aria-label': 'kinds of events' }, ['', ...Object.keys(kinds)].map((k) =>
      h('button', { type: 'button', class: 'chip', 'aria-pressed': String(k === chosen), onclick: () => app.set({ filter: k }) }, k ? kinds[k] : 'All', h('span', { class: 'quiet' }, ` ${count(k)}`)))),
    shown.length === 0 ? h('p', { class: 'blank' }, app.status ? 'No event of this kind is remembered.' : 'Waiting for the first events.')
      : h('ol', { class: 'timeline' }, shown.map((e) => {
        const d = dayOf(e.at), head = d !== lastDay && h('h3', null, d);
        lastDay = d;
        return h('li', { 'data-key': e.id, class: e.kind }, head, h('details', null,
          h('summary', null, h('time', { datetime: e.at }, timeOf(e.at)), h('span', { class: 'dot' }), h('span', { class: 'text' }, h('b', null, e.node), ' ', e.what), h('span', { class: 'tag' }, kinds[e.kind] ?? e.kind)),
          h('dl', null, h('dt', null, 'Why'), h('dd', null, e.because || 'No reason was kept.'), e.epoch ? [h('dt', null, 'Epoch'), h('dd', null, e.epoch)] : null, h('dt', null, 'At'), h('dd', { class: 'mono' }, e.at))));
      })));
}

const year = 365.25 * 86400;

// consoleOf links the console of another member.
const consoleOf = (app, r) => (r.console ? r.name === app.me?.node || !placed(r) ? r.console : h('a', { href: `${location.protocol}//${r.console}/${location.hash}`, rel: 'noreferrer' }, r.console) : '–');

// certificates shows when those of each member expire.
function certificates(app) {
  const all = app.rows('coterie.certificates');
  const names = (app.status?.replicas ?? []).map((r) => r.name);
  const until = (of) => (r) => {
    const at = all.find((c) => c.node === r.name && c.certificate === of)?.expires;
    if (!at) return h('span', { class: 'quiet' }, all.some((c) => c.node === r.name) ? 'none' : 'does not answer');
    const left = (Date.parse(at) - Date.now()) / 1000;
    return h('time', { datetime: at, title: at }, state(left > 14 * 86400 ? 'good' : left > 0 ? 'warn' : 'bad', left <= 0 ? 'expired' : left > 2 * year ? `in ${Math.floor(left / year)} years` : `in ${seconds(left)}`), h('div', { class: 'quiet' }, dayOf(at)));
  };
  return table('Certificates', [
    { label: 'Member', cell: (r) => r.name },
    { label: 'Between nodes', cell: until('node') },
    { label: 'Clients and console', cell: until('listener') },
    { label: 'Authority of the group', cell: until('authority') },
  ], all && names.map((name) => ({ name })), 'The group has no members yet.', lacking(app, 'coterie.certificates'));
}

export function members(app) {
  const st = app.status;
  const votes = new Map(app.rows('sys.dm_hadr_cluster_members')?.map((m) => [m.member_name, m]));
  const rows = st?.replicas?.map((r) => ({ ...r, vote: votes.get(r.name) }));
  const turn = st?.authority_rotation;
  return [
    card('Members', st && h('span', { class: 'quiet' }, `${st.voters} votes${st.external_quorum ? ', by an external etcd' : ''} · quorum ${st.quorum ? 'is there' : 'is lost'}`), table('Members', [
      { label: 'Name', cell: (r) => r.name },
      { label: 'Kind', cell: (r) => (r.availability_mode === 'CONFIGURATION_ONLY' ? 'witness' : 'replica') },
      { label: 'State', cell: (r) => (r.connected_state === 'CONNECTED' ? state('good', 'answers') : state('bad', 'does not answer')) },
      { label: 'Vote', cell: (r) => (r.no_vote ? state('warn', r.no_vote) : r.voter ? 'votes' : h('span', { class: 'quiet' }, 'none')) },
      { label: 'Between nodes', class: 'mono', cell: (r) => r.endpoint },
      { label: 'Clients', class: 'mono', wide: true, cell: (r) => r.listener || '–' },
      { label: 'Read-only', class: 'mono', wide: true, cell: (r) => r.read_only || '–' },
      { label: 'Health checks', class: 'mono', wide: true, cell: (r) => r.http || '–' },
      { label: 'Console', class: 'mono', wide: true, cell: (r) => consoleOf(app, r) },
    ], rows, 'The group has no members yet.'), h('p', { class: 'row' }, st && (st.draft ? foundingButton(app) : joinButton(app)))),
    card('Certificates', aged(app, 'coterie.certificates'), h('dl', { class: 'facts' },
      h('dt', null, 'Authority'), h('dd', { class: 'mono cut' }, st?.authority ?? '–'),
      h('dt', null, 'Rotation'), h('dd', null, turn ? state('warn', `${turn.phase}; waits for ${turn.waits_for?.join(', ') || 'nobody'}`) : 'none is under way'),
    ), certificates(app), h('p', { class: 'quiet' }, 'Nodes renew their own in time. ', h('code', null, 'coterie check'), ' judges those of every node.')),
    card('This session', null, h('dl', { class: 'facts' },
      h('dt', null, 'User'), h('dd', null, `${app.me?.user}, ${app.me?.role}`),
      h('dt', null, 'Node'), h('dd', null, app.me?.node), h('dt', null, 'Ends'), h('dd', null, app.me ? `${timeOf(app.me.expires)}, ${dayOf(app.me.expires)}` : '–'))),
  ];
}

export { ago };
