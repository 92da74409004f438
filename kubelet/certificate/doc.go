// Package certificate keeps the certificates of a node: it asks the API server to sign them, keeps them on disk and
// has them renewed well before they expire.
//
// A [Manager] keeps one certificate; [NewClient] makes that with which the node speaks to the API server,
// [NewServing] that with which it answers. [RESTConfig] speaks to the API server with whatever certificate is the
// current one. The signing and the moment of renewal are client-go's certificate manager's.
package certificate
