// The viewer in a standalone HTML file: shows what `vit.view.standalone_page` embedded and sends nothing.

import { readEmbedded } from "./embedded.js";
import { mount } from "./viewer.js";

const data = await readEmbedded();
const parentElement = /** @type {HTMLElement} */ (document.querySelector("main"));
mount({ data, parentElement, setStateValue() {} });
