// What the wizards share.

import { h } from './dom.js';
import { sign } from './parts.js';

// The signs of what a check has found.
const tones = { OK: 'good', WARNING: 'warn', PROBLEM: 'bad' };

/** pagesOf shows the pages of a wizard, and which one is open. */
export const pagesOf = (pages, open) => h('ol', { class: 'pages', 'aria-label': 'pages of the wizard' }, pages.map((p, i) => h('li', { 'aria-current': i === open ? 'step' : null, class: i < open ? 'past' : '' }, p)));

/** select returns a choice with its label. */
export const select = (id, label, value, options, onchange) => [h('label', { for: id, 'data-key': `${id}-label` }, label), h('select', { id, 'data-key': id, onchange: (e) => onchange(e.target.value) }, options.map(([v, text]) => h('option', { value: v, selected: v === value }, text)))];

/** findings lists what the checks have found. */
export const findings = (found) => h('ul', { class: 'findings' }, found.map((f) => h('li', null, sign(tones[f.level] ?? 'calm'), h('span', { class: 'hidden' }, `${f.level.toLowerCase()}: `), h('span', null, f.what, f.run && h('span', { class: 'quiet' }, [' next: ', f.run.startsWith('coterie ') ? h('code', null, f.run) : f.run])))));

/** script shows statements, which can be copied. */
export const script = (app, d, text) => [
  h('pre', { class: 'script', tabindex: '0', 'aria-label': 'Script' }, text),
  h('p', null, h('button', { type: 'button', class: 'act', onclick: () => copy(app, text) }, d.copied === text ? 'Copied' : 'Copy the script')),
];

/** course lists steps, each with whether it is reached and what is said about it now. */
export function course(steps) {
  const next = steps.findIndex(([, done]) => !done);
  return h('ol', { class: 'steps', 'aria-label': 'steps' }, steps.map(([label, done, now], i) => h('li', { class: done ? 'done' : i === next ? 'now' : '' }, done ? sign('good') : i === next ? h('i', { class: 'spin' }) : h('i', { class: 'dot' }), h('span', null, label, i === next && now && h('span', { class: 'quiet' }, ` ${now}`)))));
}

/** verdict says in a sentence how many problems were found, or that there is none. */
export function verdict(found, none) {
  const bad = found.filter((f) => f.level === 'PROBLEM').length;
  return h('p', { role: 'status' }, bad ? h('b', null, bad === 1 ? 'One problem has to be solved first.' : `${bad} problems have to be solved first.`) : none);
}

/** copy puts a text where it can be pasted. */
export async function copy(app, text) {
  await navigator.clipboard?.writeText(text).catch(() => {});
  app.set({ dialog: { ...app.dialog, copied: text } });
}
