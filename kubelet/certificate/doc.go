// Package certificate manages the certificates of a node: it requests them from the API server, stores them on disk and
// renews them well before they expire.
//
// A [Manager] manages one certificate. [NewClient] returns the one for the node's client certificate, [NewServing] the one
// for the certificate of the node's server. [RESTConfig] configures a client of the API server that always uses the
// current certificate. Signing requests and the time of renewal are those of client-go's certificate manager.
package certificate
