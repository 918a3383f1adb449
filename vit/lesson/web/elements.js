// Small DOM utilities.

/**
 * Return the first element that matches a selector.
 *
 * @param {string} selector
 * @param {ParentNode} [parent]
 */
export function element(selector, parent = document) {
  return /** @type {HTMLElement} */ (parent.querySelector(selector));
}

/**
 * Create an element.
 *
 * @param {string} tag
 * @param {Record<string, unknown>} [properties]
 * @param {(Node | string)[]} children
 */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
