// Lint rules for the JavaScript; run by `make check-js`.

import js from "@eslint/js";
import globals from "globals";

const PURE = ["attention", "bytes", "captions", "colours", "engine", "maps", "payload", "picture_map", "selection", "state", "words"];
const PURE_LESSON = ["course", "layers", "machine_code", "maps_payload", "model", "operations", "preprocess", "resample", "text", "trace", "transformer", "weights", "workspace"];

export default [
  { ignores: [".venv*/", "node_modules/", "data/", "runs/", "downloads/", "test-results/"] },
  js.configs.recommended,
  {
    rules: {
      eqeqeq: "error",
      "no-empty": ["error", { allowEmptyCatch: true }],
      "no-shadow": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": ["error", { destructuring: "all" }],
    },
  },
  { files: ["vit/**/*.js", "pages/**/*.js"], languageOptions: { globals: globals.browser } },
  { files: ["tests/web/*.js"], languageOptions: { globals: globals.node } },
  {
    // Modules without DOM access, which are tested without a browser.
    files: [...PURE.map((name) => `vit/view/web/${name}.js`), ...PURE_LESSON.map((name) => `vit/lesson/web/${name}.js`)],
    rules: { "no-restricted-globals": ["error", ...Object.keys(globals.browser).filter((name) => !(name in globals.node))] },
  },
];
