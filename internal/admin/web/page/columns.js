// Grids whose columns the user chooses. What is chosen stays in this browser.

import { h } from './dom.js';
import { table } from './parts.js';

const kept = (id) => `columns.${id}`;

// chosen returns the ids of the columns that a grid shows. What the browser kept of an older page may name others.
function chosen(id, columns) {
  try {
    const list = JSON.parse(localStorage.getItem(kept(id)));
    if (Array.isArray(list)) return list;
  } catch {
    // It is not what this page has written: the usual columns are shown.
  }
  return columns.filter((c) => !c.off).map((c) => c.id);
}

/**
 * grid returns a table and the control that chooses its columns. A column is one of table() with an id; those that are
 * off are shown once they are chosen, and the first one always is. With memo the rows are drawn anew when it changes.
 */
export function grid(app, id, name, columns, rows, empty, missing, memo) {
  const show = chosen(id, columns);
  const shown = () => table(name, columns.filter((c, i) => i === 0 || show.includes(c.id)), rows, empty, missing);
  const choose = (c, on) => {
    localStorage.setItem(kept(id), JSON.stringify(columns.filter((x) => (x === c ? on : show.includes(x.id))).map((x) => x.id)));
    app.set({});
  };
  const usual = () => {
    localStorage.removeItem(kept(id));
    app.set({ usual: (app.usual ?? 0) + 1 });
  };
  const close = (e) => {
    if (e.key !== 'Escape' || !e.currentTarget.open) return;
    e.currentTarget.open = false;
    e.currentTarget.firstElementChild.focus();
  };
  const away = (e) => {
    if (!e.currentTarget.contains(e.relatedTarget)) e.currentTarget.open = false;
  };
  return {
    table: h('div', memo === undefined ? {} : { memo: `${memo} ${show}`, build: () => shown() }, memo === undefined && shown()),
    chooser: h('details', { class: 'columns', 'data-key': `columns of ${id}`, onkeydown: close, onfocusout: away }, h('summary', { 'aria-label': `Columns of ${name}` }, 'Columns'),
      h('div', { class: 'menu', tabindex: '-1' }, h('fieldset', null, h('legend', { class: 'hidden' }, `Columns of ${name}`),
        columns.slice(1).map((c) => h('label', { class: 'tick', 'data-key': `${c.id} ${app.usual ?? 0}` }, h('input', { type: 'checkbox', checked: show.includes(c.id), onchange: (e) => choose(c, e.target.checked) }), h('span', null, c.label, c.title && h('span', { class: 'quiet' }, ` ${c.title}`))))),
      h('button', { type: 'button', class: 'act', 'aria-label': `The usual columns of ${name}`, onclick: usual }, 'As usual'))),
  };
}
