// Bytes out of the text that `vit.view.lesson` makes of them, two to a letter. No DOM here.

const ESCAPE = 0x2424; // "␤"; the letter after it has its highest bit turned
const HIGHEST = 0x8000;

/** @param {string} text */
export function bytesOf(text) {
  const letters = new Uint16Array(text.length);
  let count = 0;
  for (let i = 0; i < text.length; i++) {
    const letter = text.charCodeAt(i);
    letters[count++] = letter === ESCAPE ? text.charCodeAt(++i) ^ HIGHEST : letter;
  }
  return new Uint8Array(letters.buffer, 0, 2 * count);
}
