// Elements are built anew for each state and compared with those on the page, which keep their focus, their scroll
// position and what is typed into them. Text is only ever text: nothing here makes HTML of a string.

const SVG = 'http://www.w3.org/2000/svg';

/** h returns an element. Properties that begin with "on" are listeners, mounted is called with the element once it is on the page; false, null and undefined are left out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** s returns an element of SVG. */
export function s(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(el, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) listen(el, name.slice(2), value);
    else if (name === 'memo') el.$memo = value;
    else if (name === 'build') el.$build = value;
    else if (name === 'mounted') el.$mounted = value;
    else el.setAttribute(name, value === true ? '' : value);
  }
  add(el, children);
  return el;
}

function add(el, children) {
  for (const c of children) {
    if (Array.isArray(c)) add(el, c);
    else if (c instanceof Node) el.append(c);
    else if (c !== false && c !== null && c !== undefined) el.append(String(c));
  }
}

function listen(el, type, f) {
  el.$on ??= {};
  if (!(type in el.$on)) el.addEventListener(type, dispatch);
  el.$on[type] = f;
}

function dispatch(e) {
  e.currentTarget.$on?.[e.type]?.(e);
}

/** show makes the children of root those that are given. */
export function show(root, ...children) {
  const fresh = document.createDocumentFragment();
  add(fresh, children);
  patchChildren(root, fresh);
}

function patchChildren(old, fresh) {
  const keyed = new Map();
  const wanted = new Set();
  for (const c of fresh.childNodes) if (c.dataset?.key) wanted.add(c.dataset.key);
  for (const c of [...old.childNodes]) {
    if (!c.dataset?.key) continue;
    if (wanted.has(c.dataset.key)) keyed.set(c.dataset.key, c);
    else c.remove(); // now, so that those behind it stay where they are: a dialog that is moved is not modal any more
  }
  let at = old.firstChild;
  for (const want of [...fresh.childNodes]) {
    const key = want.dataset?.key;
    let have = key ? keyed.get(key) : at;
    if (have && !key && have.dataset?.key) have = null;
    if (have && have.nodeType === want.nodeType && have.nodeName === want.nodeName) {
      if (have !== at) old.insertBefore(have, at);
      patch(have, want);
      at = have.nextSibling;
    } else {
      old.insertBefore(build(want), at);
      mount(want);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(have, want) {
  if (have.nodeType !== Node.ELEMENT_NODE) {
    if (have.data !== want.data) have.data = want.data;
    return;
  }
  for (const { name, value } of want.attributes) if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  for (const { name } of [...have.attributes]) {
    if (!want.hasAttribute(name) && !(name === 'open' && (have.nodeName === 'DETAILS' || have.nodeName === 'DIALOG'))) have.removeAttribute(name);
  }
  for (const [type, f] of Object.entries(want.$on ?? {})) listen(have, type, f);
  for (const type of Object.keys(have.$on ?? {})) if (!want.$on?.[type]) delete have.$on[type];
  if (want.$memo !== undefined) {
    if (have.$memo !== want.$memo) {
      have.$memo = want.$memo;
      have.replaceChildren(want.$build());
    }
    return;
  }
  patchChildren(have, want);
}

// mount calls what waits for its element to be on the page.
function mount(el) {
  el.$mounted?.(el);
  for (const c of el.children ?? []) mount(c);
}

// build fills what was left to be built.
function build(el) {
  if (el.$build) el.replaceChildren(el.$build());
  for (const c of el.children ?? []) build(c);
  return el;
}
