import { s } from './dom.js';

const paths = {
  good: 'm2 6.5 3 3L11 3', warn: 'M6.5 1 12 11.5H1ZM6.5 5v3M6.5 9.6v.4', bad: 'm2.5 2.5 8 8m0-8-8 8', calm: 'M2 6.5h9',
};

/** shape returns the sign of a tone within a picture. */
export const shape = (tone, x, y) => s('path', { class: `mark ${tone}`, d: paths[tone], transform: `translate(${x} ${y})` });
