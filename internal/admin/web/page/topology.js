import { s } from './dom.js';
import { bytes } from './format.js';
import { shape } from './shape.js';

// The picture is drawn for two widths: side by side, and from top to bottom on a phone.
const narrow = matchMedia('(max-width: 640px)');

const W = 168, H = 62;

/** topology draws the members, and the streams of WAL between them. */
export function topology(app) {
  const st = app.status;
  const members = st.replicas ?? [];
  const from = members.find((r) => r.name === st.primary) ?? null;
  const rest = members.filter((r) => r !== from);
  const tall = narrow.matches;
  const place = tall ? below(rest.length, Boolean(from)) : beside(rest.length, Boolean(from));
  const lines = from ? rest.filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY').map((r) => edge(place, rest.indexOf(r), r, from, app, tall)) : [];
  const label = from ? `${from.name} is the primary; ${rest.map((r) => `${r.name}: ${(r.synchronization_state ?? 'a witness').toLowerCase()}`).join(', ')}` : 'there is no primary';
  return s('svg', { class: `topology${tall ? ' tall' : ''}`, viewBox: `0 0 ${place.width} ${place.height}`, role: 'img', 'aria-label': label },
    lines, from && node(place.primary, from, st), rest.map((r, i) => node(place.others[i], r, st)));
}

function beside(n, primary) {
  const gap = 36, height = Math.max(1, n) * (H + gap) - gap + 24, width = 640;
  return {
    width, height: Math.max(height, H + 24), primary: [8, Math.max(height, H + 24) / 2 - H / 2],
    others: Array.from({ length: n }, (_, i) => [primary ? width - W - 8 : width / 2 - W / 2, 12 + i * (H + gap)]),
  };
}

function below(n, primary) {
  const gap = 58, x = 76, top = primary ? H + gap : 0, width = 328;
  return { width, height: top + Math.max(1, n) * (H + gap) - gap + 16, primary: [8, 8], others: Array.from({ length: n }, (_, i) => [x + 76, 8 + top + i * (H + gap)]) };
}

function node([x, y], r, st) {
  const witness = r.availability_mode === 'CONFIGURATION_ONLY';
  const gone = r.connected_state === 'DISCONNECTED';
  const tone = gone || r.role === 'RESOLVING' && !witness ? 'bad' : witness || r.synchronization_state === 'SYNCHRONIZED' ? 'good' : r.availability_mode === 'ASYNCHRONOUS_COMMIT' ? 'calm' : 'warn';
  const line = gone ? 'does not answer' : witness ? (r.voter ? 'votes, holds no data' : 'no vote, no data') : r.busy ? `${r.busy}: ${r.progress ?? ''}` : (r.synchronization_state ?? '').toLowerCase();
  return s('g', { class: `node ${tone}${r.name === st.primary ? ' primary' : ''}${gone ? ' gone' : ''}`, 'data-key': r.name, transform: `translate(${x} ${y})` },
    s('rect', { width: W, height: H, rx: 8 }),
    s('text', { class: 'name', x: 14, y: 25 }, r.name),
    s('text', { class: 'what', x: W - 14, y: 25, 'text-anchor': 'end' }, witness ? 'witness' : (r.role ?? '').toLowerCase()),
    shape(tone, 13, 36), s('text', { class: 'line', x: 33, y: 47.5 }, clip(line, 22)));
}

const clip = (t, n) => (t.length > n ? t.slice(0, n - 1) + '…' : t);

function edge(place, i, r, from, app, tall) {
  const [px, py] = place.primary, [x, y] = place.others[i];
  const stream = app.rows('coterie.streams')?.find((t) => t.member === r.name);
  const link = (app.status.links ?? []).find((l) => l.peer === r.name);
  const open = stream ? stream.open : r.connected_state === 'CONNECTED' && r.synchronization_state !== 'NOT SYNCHRONIZING';
  const sync = r.availability_mode === 'SYNCHRONOUS_COMMIT';
  const start = tall ? [px + 34, py + H] : [px + W, py + H / 2];
  const end = [x, y + H / 2];
  const d = tall ? `M${start} V${end[1] - 12} q0 12 12 12 H${end[0]}` : `M${start} C${start[0] + 70} ${start[1]} ${start[0] + 40} ${end[1]} ${start[0] + 110} ${end[1]} H${end[0]}`;
  const behind = stream?.behind_bytes ?? r.lag_bytes;
  const facts = open ? [behind === null || behind === undefined ? 'lag unknown' : behind === 0 ? 'level' : `${bytes(behind)} behind`] : ['no stream'];
  const detail = open ? [stream?.transport ?? link?.transport, codec(stream?.codec ?? link?.codec), trip(stream?.round_trip_ms ?? link?.round_trip_ms)].filter(Boolean).join(' · ') : '';
  const tx = tall ? end[0] - 8 : end[0] - 14, ty = tall ? y - 22 : end[1] - 10;
  const anchor = tall ? 'start' : 'end';
  return s('g', { class: `edge ${open ? (behind > 16e6 ? 'late' : 'open') : 'shut'}${sync ? ' sync' : ' async'}`, 'data-key': `to ${r.name}` },
    s('path', { d, class: 'wire' }), open && s('path', { d, class: 'flow' }),
    s('text', { x: tx, y: ty, 'text-anchor': anchor }, `${sync ? 'synchronous' : 'asynchronous'} · ${facts[0]}`),
    detail && s('text', { x: tx, y: tall ? ty + 14 : ty + 26, 'text-anchor': anchor, class: 'detail' }, detail));
}

const codec = (c) => (c && c !== 'OFF' ? c.toLowerCase() : null);
const trip = (ms) => (ms === null || ms === undefined ? null : `${ms < 1 ? ms.toFixed(2) : ms.toFixed(1)} ms`);
