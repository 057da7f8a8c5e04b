// Package clientcert judges certificates of clients beyond their chain: whether one is revoked, and the name in it.
// It knows nothing of sessions. Start at CRL.
package clientcert
