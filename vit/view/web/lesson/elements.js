// Elements of the lesson's page.

/**
 * The one element that a selector means.
 *
 * @param {string} selector
 * @param {ParentNode} [parent]
 */
export function element(selector, parent = document) {
  return /** @type {HTMLElement} */ (parent.querySelector(selector));
}

/**
 * A new element.
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
