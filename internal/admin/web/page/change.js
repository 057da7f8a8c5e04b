import { h } from './dom.js';
import { sign } from './parts.js';

/** typed asks for a name: it cannot be clicked away. */
export const typed = (app, d) => [
  h('label', { for: 'typed' }, 'Type ', h('b', null, d.type), ' to confirm'),
  h('input', { id: 'typed', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', oninput: (e) => app.set({ dialog: { ...app.dialog, typed: e.target.value } }) }),
];

/** proof asks for the password of the session's user once more. */
export const proof = (app) => [h('label', { for: 'proof' }, app.me.by_certificate ? 'Your password, once more; none if your certificate alone lets you in' : 'Your password, once more'), h('input', { id: 'proof', name: 'proof', type: 'password', autocomplete: 'current-password', maxlength: '1024', required: !app.me.by_certificate, mounted: (el) => el.focus() })];

/** outcome tells how a change goes, and how it ended. */
export function outcome(deed) {
  if (!deed) return h('p', null, 'Asked for…');
  const tone = { done: 'good', failed: 'bad' }[deed.state];
  const text = deed.error ? `${deed.number ? `Msg ${deed.number}: ` : ''}${deed.message}` : deed.message;
  return [
    h('p', { class: `outcome ${tone ?? ''}`, role: 'status' }, tone ? sign(tone) : h('i', { class: 'spin' }), h('span', null, tone ? text : deed.now || 'Under way…')),
    deed.error?.hint && h('p', { class: 'quiet' }, deed.error.hint),
    (deed.notices ?? []).slice(1).map((n) => h('p', { class: 'quiet' }, n.message)),
    h('p', null, h('code', null, deed.statement)),
  ];
}
