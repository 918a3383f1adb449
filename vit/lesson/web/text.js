// Decodes bytes that `vit.lesson.page.as_text` stored as text, two per UTF-16 code unit. No DOM access.

const ESCAPE = 0x2424; // "␤"; the highest bit of the following code unit is inverted
const HIGHEST = 0x8000;

/** @param {string} text */
export function decodeText(text) {
  const letters = new Uint16Array(text.length);
  let count = 0;
  for (let i = 0; i < text.length; i++) {
    const letter = text.charCodeAt(i);
    letters[count++] = letter === ESCAPE ? text.charCodeAt(++i) ^ HIGHEST : letter;
  }
  return new Uint8Array(letters.buffer, 0, 2 * count);
}
