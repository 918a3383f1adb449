// Viewers that move together: one cursor, one selection, one colour scale for maps of one kind.

import { counterpart, ofFeatures } from "./selection.js";

/** @import { Direction, View } from "./types" */
/** @import { Viewer } from "./viewer.js" */

/** @type {Map<string, Set<Viewer>>} */
const groups = (globalThis.__vitGroups ??= new Map());

/** One viewer's place in a group; the name "" is that of none. */
export class Group {
  /** @param {Viewer} viewer */
  constructor(viewer) {
    this.viewer = viewer;
    this.name = "";
    this.reach = { view: "", top: 0 }; // its map's strongest patch, where colours end there
    /** @type {Viewer | null} */
    this.leader = null; // the other viewer in which people did something last
  }

  /**
   * The viewer whose token is looked for in this picture: another picture of the same model, both by features.
   *
   * @param {View} view
   * @returns {Viewer | null}
   */
  searched(view) {
    const { leader, viewer } = this;
    if (!ofFeatures(view) || !leader || !this.peers.includes(leader) || leader.state.view !== view) return null;
    if (!viewer.model || viewer.model !== leader.model || viewer.payloadId === leader.payloadId) return null;
    const { features } = viewer, { features: other } = leader;
    return features && other && features.block === other.block && features.width === other.width ? leader : null;
  }

  /** @param {string} name */
  join(name) {
    if (name === this.name) return;
    groups.get(this.name)?.delete(this.viewer);
    this.leader = null;
    if (name) groups.set(name, (groups.get(name) ?? new Set()).add(this.viewer));
    this.name = name;
  }

  /** The others of the group that have something to show. */
  get peers() {
    return [...(groups.get(this.name) ?? [])].filter((viewer) => viewer !== this.viewer && viewer.payload);
  }

  /**
   * The end of the colour scale that all blocks and heads share, and all viewers of the group.
   *
   * @param {number} token
   * @param {Direction} direction
   */
  sharedTop(token, direction) {
    const { payload } = this.viewer;
    const tops = this.peers.map((peer) => peer.payload.top(counterpart(token, payload, peer.payload), direction));
    return Math.max(payload.top(token, direction), ...tops);
  }

  /**
   * The strongest patch of this map and of all maps of the group that show the same view.
   *
   * @param {View} view
   * @param {number} top
   */
  commonTop(view, top) {
    if (this.viewer.selection.scale === "own") return top;
    if (this.reach.view !== view || this.reach.top !== top) {
      this.reach = { view, top };
      for (const peer of this.peers) peer.request();
    }
    return this.peers.reduce((most, { group: { reach } }) => (reach.view === view ? Math.max(most, reach.top) : most), top);
  }

  /**
   * Whether another map of the group is of the same kind, so that both share a scale.
   *
   * @param {View} view
   */
  shares(view) {
    return this.peers.some(({ group }) => group.reach.view === view);
  }
}
