/** The versions that this client speaks of itself and of the broker. */

export const CLIENT_VERSION = "0.1.0";
/** The version of the contract that all clients of the broker share. */
export const CONTRACT = 1;
export const API_VERSION = "v1";
export const USER_AGENT = `driftq-typescript/${CLIENT_VERSION} contract/${CONTRACT}`;
