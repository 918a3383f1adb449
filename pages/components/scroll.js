// Scrolls this element into view whenever its data changes, such as to the name of an added checkpoint.

/** @import { Mount } from "../../vit/view/web/types" */

/** @param {Mount} mount */
export default function ({ data, parentElement }) {
  const host = parentElement instanceof ShadowRoot ? parentElement.host : parentElement;
  if (data) host.scrollIntoView({ block: "center" });
}
