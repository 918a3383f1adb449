// The viewer as a component of Streamlit.

import { mount } from "./viewer.js";

export default mount;
