// The lesson's words in the reader's language. No DOM here.

/** @type {Record<string, string>} */
let table = {};

/** @param {Record<string, string>} words by their names */
export function useWords(words) {
  table = words;
}

/**
 * A word or a sentence by its name, with values in the place of their names in braces.
 *
 * @param {string} name
 * @param {Record<string, string | number>} [values]
 */
export function word(name, values = {}) {
  return (table[name] ?? name).replace(/\{(\w+)\}/g, (_, key) => String(values[key]));
}
