import { actionsOf, foundingButton, groupActions, joinButton, needsRole } from './actions.js';
import { h } from './dom.js';
import { ago, between, bytes, dayOf, seconds, timeOf, words } from './format.js';
import { aged, card, lacking, role, sign, state, table, toneOfSync } from './parts.js';

/** replicaTable joins what the views know of each replica. */
export function replicaTable(app, all) {
  const rows = app.rows('coterie.replicas')?.map((r) => {
    const stream = app.rows('coterie.streams')?.find((t) => t.member === r.name);
    return { ...r, stream, redo: stream ? between(stream.replayed, stream.flushed) : null };
  });
  const primary = (r) => r.role === 'PRIMARY';
  const dash = (r, f) => (primary(r) ? h('span', { class: 'quiet' }, '–') : f(r));
  return table('Replicas', [
    { label: 'Name', cell: (r) => [r.name, r.name === app.me?.node && h('span', { class: 'quiet' }, ' this node')] },
    { label: 'Role', cell: (r) => role(r.availability_mode === 'CONFIGURATION_ONLY' ? 'witness' : r.role) },
    { label: 'State', cell: (r) => (r.availability_mode === 'CONFIGURATION_ONLY' ? state(r.connected ? 'good' : 'bad', r.connected ? 'votes' : 'does not answer') : state(r.connected ? toneOfSync(r) : 'bad', r.connected ? words(r.synchronization_state) : 'does not answer')) },
    { label: 'Mode', wide: true, cell: (r) => [words(r.availability_mode).replace(' commit', ''), h('span', { class: 'quiet' }, ` · ${words(r.failover_mode)}`)] },
    { label: 'Not received', right: true, title: 'WAL that the replica has not flushed yet (send queue)', cell: (r) => dash(r, () => bytes(r.behind_bytes)) },
    { label: 'Not replayed', right: true, title: 'WAL that it has and has not replayed yet (redo queue)', cell: (r) => dash(r, () => bytes(r.redo)) },
    { label: 'Loss', right: true, title: 'estimated loss of data if it had to take over now', cell: (r) => dash(r, () => seconds(r.estimated_data_loss)) },
    { label: 'Recovery', right: true, wide: !all, title: 'estimated time until its queue is replayed', cell: (r) => dash(r, () => seconds(r.estimated_recovery)) },
    all && { label: 'Position', class: 'mono', wide: true, cell: (r) => r.position ?? '–' },
    all && { label: 'Link', wide: true, cell: (r) => (r.stream?.transport ? [r.stream.transport, r.stream.codec && r.stream.codec !== 'OFF' && `, ${r.stream.codec.toLowerCase()}`, h('span', { class: 'quiet' }, ` ${(r.stream.round_trip_ms ?? 0).toFixed(2)} ms`)] : h('span', { class: 'quiet' }, '–')) },
    { label: 'Now', class: 'now', cell: (r) => r.progress ?? r.because ?? '' },
  ].filter(Boolean), rows, 'The group has no replicas yet.', lacking(app, 'coterie.replicas'));
}

// none says in place of a screen that there is no group yet.
const none = (app, title) => card(title, null, h('p', { class: 'blank' }, 'There is no availability group yet.'), h('p', { class: 'row' }, foundingButton(app)));

export function replicas(app) {
  const st = app.status;
  if (st?.draft) return none(app, 'Replicas');
  return [
    card('Replicas', [aged(app, 'coterie.replicas', 'coterie.streams'), h('span', { class: 'quiet' }, st ? `commits wait for ${st.commits_wait_for || 'nobody'}` : '')], replicaTable(app, true)),
    card('Actions', needsRole(app), h('ul', { class: 'actions' }, (st?.replicas ?? []).map((r) => h('li', { 'data-key': r.name }, h('b', null, r.name), role(r.availability_mode === 'CONFIGURATION_ONLY' ? 'witness' : r.role), h('div', { class: 'row' }, actionsOf(app, r)))),
      h('li', { 'data-key': '' }, h('b', null, 'group'), h('span', { class: 'quiet' }, st?.maintenance ? 'under maintenance' : ''), h('div', { class: 'row' }, st && groupActions(app))))),
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

const copies = 'sys.dm_hadr_database_replica_states';

export function databases(app) {
  const states = app.rows(copies);
  const cluster = app.rows('sys.dm_hadr_database_replica_cluster_states');
  const names = new Map(app.rows('sys.availability_replicas')?.map((r) => [r.replica_id, r.replica_server_name]));
  const dbs = new Map(app.rows('coterie.databases')?.map((d) => [d.database_id, d]));
  const rows = states?.map((r) => {
    const c = cluster?.find((x) => x.replica_id === r.replica_id && x.group_database_id === r.group_database_id);
    return { ...r, $key: `${r.database_id}/${r.replica_id}`, name: dbs.get(r.database_id)?.name ?? c?.database_name ?? String(r.database_id), replica: names.get(r.replica_id) ?? '…', ready: c?.is_failover_ready };
  }).sort((a, b) => a.name.localeCompare(b.name) || a.replica.localeCompare(b.replica));
  return card('Databases', [aged(app, copies), h('span', { class: 'quiet' }, 'a copy is a whole server: its databases fail over together')], table('Databases', [
    { label: 'Database', cell: (r) => r.name },
    { label: 'Replica', cell: (r) => [r.replica, r.is_primary_replica && h('span', { class: 'quiet' }, ' primary')] },
    { label: 'State', cell: (r) => state(toneOfSync({ synchronization_state: r.synchronization_state_desc, availability_mode: r.is_commit_participant ? '' : 'ASYNCHRONOUS_COMMIT' }), r.is_suspended ? 'suspended' : words(r.synchronization_state_desc)) },
    { label: 'Failover', cell: (r) => (r.ready === undefined || r.ready === null ? '–' : r.ready ? 'no data loss' : 'data loss') },
    { label: 'Send queue', right: true, cell: (r) => kb(r.log_send_queue_size) },
    { label: 'Redo queue', right: true, cell: (r) => kb(r.redo_queue_size) },
    { label: 'Redo rate', right: true, wide: true, cell: (r) => (r.redo_rate === null ? '–' : `${kb(r.redo_rate)}/s`) },
    { label: 'Last commit', right: true, wide: true, cell: (r) => (r.last_commit_time ? h('time', { title: r.last_commit_time }, timeOf(r.last_commit_time)) : '–') },
  ], rows, 'The group has no database yet.', lacking(app, copies)));
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

export function members(app) {
  const st = app.status;
  const votes = new Map(app.rows('sys.dm_hadr_cluster_members')?.map((m) => [m.member_name, m]));
  const rows = st?.replicas?.map((r) => ({ ...r, vote: votes.get(r.name) }));
  const expires = app.me?.certificate_expires;
  const left = expires ? (Date.parse(expires) - Date.now()) / 1000 : null;
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
    ], rows, 'The group has no members yet.'), h('p', { class: 'row' }, st && (st.draft ? foundingButton(app) : joinButton(app)))),
    card('Certificates', null, h('dl', { class: 'facts' },
      h('dt', null, 'Authority'), h('dd', { class: 'mono cut' }, st?.authority ?? '–'),
      h('dt', null, 'Rotation'), h('dd', null, turn ? state('warn', `${turn.phase}; waits for ${turn.waits_for?.join(', ') || 'nobody'}`) : 'none is under way'),
      h('dt', null, `Clients’ certificate of ${app.me?.node ?? 'this node'}`), h('dd', null, left === null ? '–' : [sign(left > 14 * 86400 ? 'good' : left > 0 ? 'warn' : 'bad'), ` until ${dayOf(expires)}, renewed by itself before`])),
      h('p', { class: 'quiet' }, 'coterie check judges the certificates of every node.')),
    card('This session', null, h('dl', { class: 'facts' },
      h('dt', null, 'User'), h('dd', null, `${app.me?.user}, ${app.me?.role}`),
      h('dt', null, 'Node'), h('dd', null, app.me?.node), h('dt', null, 'Ends'), h('dd', null, app.me ? `${timeOf(app.me.expires)}, ${dayOf(app.me.expires)}` : '–'))),
  ];
}

export { ago };
