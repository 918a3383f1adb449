// The viewer as a Streamlit component.

import { mount } from "./viewer.js";

/** @import { Mount } from "./types" */

// `data` is a list of one message: for a dictionary, Streamlit would import pandas (0.5 s) to look for tables in it.
/** @param {Mount} mount */
export default ({ data: [message], parentElement, setStateValue, setTriggerValue }) =>
  mount({ data: message, parentElement, setStateValue, ask: (label) => setTriggerValue("ask", label) });
