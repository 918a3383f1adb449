// Groups of viewers that share a cursor, a selection, and one colour scale per kind of map.

import { counterpart, comparesFeatures } from "./selection.js";

/** @import { Direction, View } from "./types" */
/** @import { Viewer } from "./viewer.js" */

/** @type {Map<string, Set<Viewer>>} */
const groups = (globalThis.__vitGroups ??= new Map());

/** A viewer's membership in a group; the name "" means no group. */
export class Group {
  /** @param {Viewer} viewer */
  constructor(viewer) {
    this.viewer = viewer;
    this.name = "";
    this.ownMap = { view: "", top: 0 }; // the viewer's map and its strongest patch, which ends its own colour scale
    /** @type {Viewer | null} */
    this.leader = null; // the other viewer that the user last interacted with
  }

  /**
   * Return the viewer whose token is matched against this picture's patches, if any. Both must show features of the
   * same model, after the same block, for different pictures.
   *
   * @param {View} view
   * @returns {Viewer | null}
   */
  matchSource(view) {
    const { leader, viewer } = this;
    if (!comparesFeatures(view) || !leader || !this.peers.includes(leader) || leader.state.view !== view) return null;
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

  /** The other viewers of the group that have a payload. */
  get peers() {
    return [...(groups.get(this.name) ?? [])].filter((viewer) => viewer !== this.viewer && viewer.payload);
  }

  /**
   * Return the end of the colour scale that all blocks, heads and viewers of the group share.
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
   * Return the strongest patch among this map and the group's other maps of the same view.
   *
   * @param {View} view
   * @param {number} top
   */
  commonTop(view, top) {
    if (this.viewer.selection.scale === "own") return top;
    if (this.ownMap.view !== view || this.ownMap.top !== top) {
      this.ownMap = { view, top };
      for (const peer of this.peers) peer.request();
    }
    return this.peers.reduce((most, { group: { ownMap } }) => (ownMap.view === view ? Math.max(most, ownMap.top) : most), top);
  }

  /**
   * Whether another viewer of the group shows the same view and so shares its scale.
   *
   * @param {View} view
   */
  shares(view) {
    return this.peers.some(({ group }) => group.ownMap.view === view);
  }
}
