// Words in the reader's language. English is what stands in the code, and what is said where nobody gave others. No DOM here.

/** @type {Record<string, string>} */
let table = {};

/**
 * Speak another language from now on.
 *
 * @param {Record<string, string>} words by what they are in English, or by their names
 */
export function useWords(words) {
  table = words;
}

/**
 * A word or a sentence, with values in the place of their names in braces.
 *
 * @param {string} words
 * @param {Record<string, string | number>} [values]
 */
export function say(words, values = {}) {
  return (table[words] ?? words).replace(/\{(\w+)\}/g, (name, key) => (key in values ? String(values[key]) : name));
}

/**
 * A number's digits with the reader's decimal sign.
 *
 * @param {string} digits
 */
export function decimal(digits) {
  return digits.replace(".", say("."));
}
