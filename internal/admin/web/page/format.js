// Numbers and times as people read them.

export function bytes(n) {
  if (n === null || n === undefined) return '–';
  if (n < 1000) return `${n} B`;
  const units = ['kB', 'MB', 'GB', 'TB'];
  let i = -1;
  do {
    n /= 1000;
    i++;
  } while (n >= 999.5 && i < units.length - 1);
  return `${n < 10 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export function seconds(n) {
  if (n === null || n === undefined) return '–';
  if (n < 0.95) return n < 0.0005 ? '0 s' : `${Math.max(1, Math.round(n * 1000))} ms`;
  if (n < 60) return `${n < 10 ? Number(n.toFixed(1)) : Math.round(n)} s`;
  if (n < 3600) return `${Math.round(n / 60)} min`;
  if (n < 172800) return `${Math.round(n / 3600)} h`;
  return `${Math.round(n / 86400)} d`;
}

export function ago(at, now = Date.now()) {
  const n = Math.max(0, (now - Date.parse(at)) / 1000);
  return n < 5 ? 'just now' : `${seconds(n)} ago`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
const day = new Intl.DateTimeFormat(undefined, { weekday: 'short', day: 'numeric', month: 'short', year: 'numeric' });

export const timeOf = (at) => (at ? clock.format(new Date(at)) : '–');
export const dayOf = (at) => day.format(new Date(at));

/** words turns SYNCHRONOUS_COMMIT into "synchronous commit". */
export const words = (s) => (s ? s.replaceAll('_', ' ').toLowerCase() : '–');

/** lsn returns a position as a number; null if it is none. */
export function lsn(text) {
  const m = /^(?:\d+:)?([0-9A-F]+)\/([0-9A-F]+)$/i.exec(text ?? '');
  return m ? (BigInt('0x' + m[1]) << 32n) + BigInt('0x' + m[2]) : null;
}

/** between returns how many bytes lie between two positions. */
export function between(behind, ahead) {
  const a = lsn(behind), b = lsn(ahead);
  if (a === null || b === null) return null;
  return a >= b ? 0 : Number(b - a);
}

export const list = (names) => (names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names.at(-1)}`);
