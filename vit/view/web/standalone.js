// The viewer in a file of its own: shows what `vit.view.standalone_page` put there, and tells nobody.

import { readHeld } from "./held.js";
import { mount } from "./viewer.js";

const data = await readHeld();
const parentElement = /** @type {HTMLElement} */ (document.querySelector("main"));
mount({ data, parentElement, setStateValue() {} });
