// Scrolls the page to this place when it is told a new reason, such as the name of what has just been added.

/** @import { Mount } from "../../vit/view/web/types" */

/** @param {Mount} mount */
export default function ({ data, parentElement }) {
  const host = parentElement instanceof ShadowRoot ? parentElement.host : parentElement;
  if (data) host.scrollIntoView({ block: "center" });
}
