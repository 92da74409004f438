// Package listedrbac spares a start the requests for single roles and bindings.
//
// A start checks some two hundred and fifty of them, nearly always to find that they are right. The client of this package lists
// them once and answers the first request for each from the lists; what is requested a second time, because a write failed for
// instance, is requested from the API server.
package listedrbac
