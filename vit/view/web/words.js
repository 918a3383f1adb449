// Translations. The code holds the English texts, which are also the default. No DOM access.

/** @type {Record<string, string>} */
let table = {};

/**
 * Set the translations.
 *
 * @param {Record<string, string>} words translations by English text, or by name
 */
export function setTranslations(words) {
  table = words;
}

/**
 * Translate a text and fill in its placeholders, such as {head}.
 *
 * @param {string} words
 * @param {Record<string, string | number>} [values]
 */
export function translate(words, values = {}) {
  return (table[words] ?? words).replace(/\{(\w+)\}/g, (name, key) => (key in values ? String(values[key]) : name));
}

/**
 * Format digits with the language's decimal separator.
 *
 * @param {string} digits
 */
export function decimal(digits) {
  return digits.replace(".", translate("."));
}
