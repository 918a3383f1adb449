// The viewer as a component of Streamlit.

import { mount } from "./viewer.js";

/** @import { Mount } from "./types" */

/** @param {Mount} mount whose data is a list of one: of a dictionary, Streamlit asks pandas what is in it */
export default ({ data: [message], parentElement, setStateValue }) =>
  mount({ data: message, parentElement, setStateValue });
