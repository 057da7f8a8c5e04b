// When the node of this page does not answer any more, the page goes on at another one. Nothing is asked of another node
// before that, and then only whether it serves the page.

import { h } from './dom.js';
import { ago, list, timeOf } from './format.js';
import { sign } from './parts.js';

const patience = 4000; // an agent that is restarted is back within it
const notice = 6000; // between the word that the page goes elsewhere, and going
const pause = 2000; // between two rounds of questions
const answerTime = 3000;

const address = /^(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+):\d{1,5}$/;

/** memberName is what a member may be called. */
export const memberName = /^[a-z][a-z0-9_]{0,29}$/;

/** placed reports whether a member has said where its console is, by a host and a port. */
export const placed = (r) => address.test(r.console ?? '');

const witness = (r) => r.availability_mode === 'CONFIGURATION_ONLY';

/**
 * others returns the other members with a console, those first that are likely to be of use. A witness is the last, and
 * only of use to somebody who has a certificate: nobody should type a password at the page of a witness.
 */
export function others(app) {
  const rank = (r) => (witness(r) ? 4 : 0) + (r.connected_state === 'CONNECTED' ? 0 : 2) + (r.synchronization_state === 'SYNCHRONIZED' ? 0 : 1);
  return (app.status?.replicas ?? []).filter((r) => r.name !== app.me.node && (!witness(r) || app.me.by_certificate) && placed(r) && r.console !== location.host).sort((a, b) => rank(a) - rank(b));
}

/** consoles names the replicas, with links where their consoles are known. */
export const consoles = (app) => (app.status?.replicas ?? []).filter((r) => r.name !== app.me.node && !witness(r)).map((r, i) => [i > 0 && ', ', placed(r) ? h('a', { href: `${location.protocol}//${r.console}/`, rel: 'noreferrer' }, r.name) : r.name]);

/** placeAt returns the address of this screen at another console, with what the page there says: from where, and who. */
export const placeAt = (app, r) => `${location.protocol}//${r.console}/#/${location.hash.replace(/^#\/?/, '').split('?')[0]}?from=${app.me.node}&as=${encodeURIComponent(app.me.user)}${app.me.by_certificate ? '&by=certificate' : ''}`;

/** arrived returns what the address says about where the user comes from, and takes it out of the address. */
export function arrived() {
  const [path, query] = location.hash.split('?');
  if (query === undefined) return null;
  const told = new URLSearchParams(query);
  history.replaceState(null, '', path);
  return memberName.test(told.get('from') ?? '') ? { node: told.get('from'), as: (told.get('as') ?? '').slice(0, 63), certificate: told.get('by') === 'certificate' } : null;
}

const answers = (origin) => fetch(`${origin}/here`, { mode: 'no-cors', credentials: 'omit', cache: 'no-store', signal: AbortSignal.timeout(answerTime) }).then(() => true, () => false);

// A page on which somebody is in the middle of something does not go by itself.
const inUse = (app) => Boolean(app.dialog) || (document.activeElement?.matches('textarea, input') ?? false);

/** lookElsewhere is called every second. It finds another console while the node does not answer, and goes there. */
export async function lookElsewhere(app, renew) {
  const now = Date.now();
  if (!app.me || !app.status || !app.old) {
    app.away = null;
    return;
  }
  const away = app.away ??= { since: now, asked: 0, to: null, by: 0, stay: false };
  if (away.to) {
    if (inUse(app)) away.by = 0;
    else if (!away.stay) away.by ||= now + notice;
    if (away.by && !away.stay && now >= away.by && !away.gone) {
      away.gone = true;
      location.assign(placeAt(app, away.to));
    }
    if (now - away.asked < pause * 2) return;
  }
  if (away.busy || now - away.since < patience || now - away.asked < pause) return;
  away.busy = true;
  const list = others(app);
  const [here, ...there] = await Promise.all([answers(''), ...list.map((r) => answers(`${location.protocol}//${r.console}`))]);
  away.busy = false;
  away.asked = Date.now();
  if (app.away !== away) return; // the node answers again
  if (here && !app.lost) renew(); // it answers, and nothing came by the stream
  const to = here ? null : list[there.indexOf(true)] ?? null;
  if (to?.name !== away.to?.name) Object.assign(away, { to, by: 0 });
}

/** lostBanner says that the node is not heard, and what becomes of the page. */
export function lostBanner(app) {
  const away = app.away, to = away?.to;
  const seen = app.heard ? ` What you see is as of ${timeOf(app.heard)}. ` : ' ';
  return h('div', { class: `banner${app.lost ? ' lost' : ''}`, role: 'alert', 'data-key': 'banner' }, sign(app.lost ? 'bad' : 'warn'), h('div', null,
    h('p', null, h('b', null, app.lost ? `${app.me.node} does not answer.` : `Nothing was heard of ${app.me.node} for ${ago(app.heard).replace(' ago', '')}.`), seen, to ? next(app, away) : waits(app, away))),
  to && h('div', { class: 'choices' },
    h('button', { type: 'button', class: 'act lead', onclick: () => location.assign(placeAt(app, to)) }, `Go to ${to.name}`),
    !away.stay && h('button', { type: 'button', class: 'act', onclick: () => app.set({ away: { ...away, stay: true } }) }, 'Stay here')));
}

function next(app, away) {
  const name = h('b', null, away.to.name);
  if (away.stay) return [name, ' answers. This page stays, and goes on once its node answers.'];
  if (!away.by) return [name, ' answers. This page goes there once you are through with this.'];
  const left = Math.max(1, Math.ceil((away.by - Date.now()) / 1000));
  return ['This page goes on at ', name, h('span', { 'aria-hidden': 'true' }, ` in ${left} s`), h('span', { class: 'hidden' }, ' in a moment'), '.'];
}

function waits(app, away) {
  const all = others(app);
  if (all.length === 0) return ['It is tried again. ', byHand(app)];
  return away?.asked ? `Neither it nor ${list(all.map((r) => r.name))} can be reached from here. They are asked again.` : 'Trying again by itself.';
}

// byHand names the other replicas where no console is known, with links to the same port of their hosts.
function byHand(app) {
  const rest = (app.status?.replicas ?? []).filter((r) => r.name !== app.me.node && r.listener);
  const host = (r) => r.endpoint.replace(/:\d+$/, '');
  return rest.length > 0 && ['Look at another replica, if its console is switched on: ', rest.map((r, i) => [i > 0 && ', ',
    host(r) === location.hostname ? r.name : h('a', { href: `${location.protocol}//${host(r)}:${location.port || 443}/${location.hash}`, rel: 'noreferrer' }, r.name)]), '.'];
}

/** arrivedBanner says why this is the page of another node. */
export function arrivedBanner(app) {
  if (!app.from || app.from.node === app.me.node) return null;
  return h('div', { class: 'banner going', role: 'status', 'data-key': 'arrived' }, sign('calm'), h('p', null, h('b', null, app.from.node), ' did not answer. This is the console of ', h('b', null, app.me.node), ' now.'),
    h('button', { type: 'button', class: 'ghost', onclick: () => app.set({ from: null }) }, 'Close'));
}
